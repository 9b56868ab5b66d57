import { RunError } from "../../../errors.ts";

/** The server failed, rather than the request: its connection broke, or its answer may be another one later. */
export class ServerFailed extends RunError {
  override name = "ServerFailed";
  /** The delay that the server asked for. */
  retryAfterSeconds?: number | undefined;
}

/** The connection broke before an answer began. */
export class ConnectionBroken extends ServerFailed {
  override name = "ConnectionBroken";
}

/** The server accepted a request, but made no progress with it. */
export class ServerStalled extends ServerFailed {
  override name = "ServerStalled";
  constructor(
    message: string,
    readonly why: string,
  ) {
    super(message);
  }
}
