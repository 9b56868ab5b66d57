/** One inference server: its address, its connections, and how it fails. */
import { Pool } from "undici";
import { RunError, UserError } from "../../errors.ts";
import { reasonOf } from "../../http/retries.ts";

/** The settings of a server, for messages. */
export interface ServerSettings {
  url: string;
  apiKey: string;
  /** Undefined: a request's time limit cannot be set. */
  timeout?: string;
}

export const samplerSettings: ServerSettings = {
  url: "local.sampler.url",
  apiKey: "local.sampler.api_key",
  timeout: "local.sampler.timeout",
};

export interface ServerAddress {
  /** The address without `/v1`. */
  readonly url: string;
  /** The part of paths before `/v1`. */
  readonly prefix: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly settings: ServerSettings;
}

export interface Server extends ServerAddress {
  /** Replaced when the server hangs, to end all requests to it. */
  pool: Pool;
  /** Time limit for a request without progress. */
  readonly timeoutSeconds: number;
  /** Number of running requests. */
  running: number;
  /** Whether the server has vLLM's `/inference/v1/generate`. */
  generates?: Promise<boolean> | undefined;
}

/** @throws UserError if the address contains a login */
export function addressOf(text: string, apiKey: string | undefined, settings: ServerSettings): ServerAddress {
  const { origin, pathname, username, password } = new URL(text);
  if (username !== "" || password !== "") {
    throw new UserError(`the address of the inference server at ${origin} contains a login, which is not supported`, {
      hint: `set ${settings.apiKey} instead`,
    });
  }
  const prefix = pathname.replace(/\/+$/, "").replace(/\/v1$/, "");
  const headers: Record<string, string> = { "content-type": "application/json" };
  if (apiKey !== undefined) headers.authorization = `Bearer ${apiKey}`;
  return { url: origin + prefix, prefix, headers, settings };
}

export function openServer(address: ServerAddress, timeoutSeconds: number): Server {
  return { ...address, pool: newPool(address.url, timeoutSeconds), timeoutSeconds, running: 0 };
}

export function newPool(url: string, timeoutSeconds: number): Pool {
  const limit = 1000 * timeoutSeconds;
  // Less than the 5 s after which vLLM and SGLang close an idle connection, perhaps while a request is on its way.
  const keepAliveTimeout = 1000;
  return new Pool(new URL(url).origin, {
    connections: 1024,
    headersTimeout: limit,
    bodyTimeout: limit,
    keepAliveTimeout,
  });
}

/** @returns the status of /health, or why the server does not answer */
export async function statusOf({ url, headers }: Server, limitMs: number): Promise<number | string> {
  try {
    return (await fetch(`${url}/health`, { headers, signal: AbortSignal.timeout(limitMs) })).status;
  } catch (error) {
    const isLate = error instanceof Error && error.name === "TimeoutError";
    return isLate ? `no answer to /health within ${limitMs / 1000} s` : reasonOf(error);
  }
}

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

/** Whether a request may succeed later: no server answered it, or the one that did failed. */
export const mayAnswerLater = (error: unknown): boolean =>
  error instanceof ServerFailed || (error instanceof RunError && error.code === "server_unreachable");
