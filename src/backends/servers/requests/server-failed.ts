import { RunError } from "../../../errors.ts";

/** The server failed, rather than the request: its connection broke, or it answered with a status from 500. */
export class ServerFailed extends RunError {
  override name = "ServerFailed";
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

/** What a connection failed with, in a few words. */
export function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  if (error.cause instanceof Error && error.message === "fetch failed") return reasonOf(error.cause);
  return error.message === "" ? ((error as NodeJS.ErrnoException).code ?? error.name) : error.message;
}
