/** One HTTP request and its answer: reading, answering once, streaming events, and noticing that the client has gone. */
import type { IncomingMessage, ServerResponse } from "node:http";
import { type ErrorShape, GatewayError } from "./gateway-error.ts";

export interface HttpExchange {
  readonly method: string;
  /** Without query. */
  readonly path: string;
  readonly query: URLSearchParams;
  header(name: string): string | undefined;
  /** Aborted when the client goes before it is answered, or by `abort`. */
  readonly signal: AbortSignal;
  abort(reason: unknown): void;
  /** The client has gone; there is nobody to answer. */
  readonly gone: boolean;
  /** @throws GatewayError when the body is no JSON object or larger than the limit */
  readObject(): Promise<Record<string, unknown>>;
  sendJson(status: number, body: unknown): void;
  sendText(status: number, type: string, text: string): void;
  /** Answers with the error; once events have begun the last one tells it. */
  sendError(error: GatewayError, shape: ErrorShape): void;
  /** Begins a stream of server-sent events. */
  startEvents(): void;
  /** @param name the event's name, where the API names its events */
  sendEvent(data: string, name?: string): void;
  end(): void;
}

/** Requests hold conversations as text; more than this is a mistake. */
const longestBody = 64 * 2 ** 20;

class ClientGone extends Error {
  override name = "AbortError";
}

export function httpExchange(request: IncomingMessage, response: ServerResponse): HttpExchange {
  const url = request.url ?? "/";
  const queryAt = url.indexOf("?");
  const stop = new AbortController();
  response.once("close", () => {
    if (!response.writableFinished) stop.abort(new ClientGone("the client went away"));
  });

  return {
    method: request.method ?? "GET",
    path: queryAt < 0 ? url : url.slice(0, queryAt),
    get query() {
      return new URLSearchParams(queryAt < 0 ? "" : url.slice(queryAt + 1));
    },
    header(name) {
      const value = request.headers[name];
      return Array.isArray(value) ? value[0] : value;
    },
    signal: stop.signal,
    abort: (reason) => stop.abort(reason),
    get gone() {
      return response.destroyed;
    },
    readObject: () => readObject(request),
    sendJson(status, body) {
      this.sendText(status, "application/json", JSON.stringify(body));
    },
    sendText(status, type, text) {
      if (response.destroyed || response.headersSent) return;
      response.writeHead(status, { "content-type": type, "content-length": Buffer.byteLength(text) });
      response.end(text);
    },
    sendError(error, shape) {
      const body = JSON.stringify(shape(error));
      if (response.headersSent) {
        this.sendEvent(body, "error");
        this.end();
        return;
      }
      if (response.destroyed) return;
      response.writeHead(error.status, {
        "content-type": "application/json",
        "content-length": Buffer.byteLength(body),
        // The clients' own retries would ask again behind the rollout's back; whether to retry is decided there.
        "x-should-retry": "false",
        ...(error.kind === "too_large" ? { connection: "close" } : {}),
      });
      response.end(body);
    },
    startEvents() {
      if (response.destroyed) return;
      response.writeHead(200, { "content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache" });
    },
    sendEvent(data, name) {
      if (response.destroyed) return;
      response.write(name === undefined ? `data: ${data}\n\n` : `event: ${name}\ndata: ${data}\n\n`);
    },
    end() {
      if (!response.destroyed) response.end();
    },
  };
}

async function readObject(request: IncomingMessage): Promise<Record<string, unknown>> {
  const text = await readText(request);
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    throw new GatewayError("invalid_request", `the request's body is no JSON: ${reason}`);
  }
  if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
  throw new GatewayError("invalid_request", "the request's body is not a JSON object");
}

function readText(request: IncomingMessage): Promise<string> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    let length = 0;
    request.on("data", (chunk: Buffer) => {
      length += chunk.length;
      if (length <= longestBody) chunks.push(chunk);
      else {
        request.removeAllListeners("data").resume();
        reject(new GatewayError("too_large", `the request is larger than ${longestBody / 2 ** 20} MiB`));
      }
    });
    request.on("end", () => resolve(chunks.length === 1 ? chunks[0]!.toString() : Buffer.concat(chunks).toString()));
    request.on("error", () => reject(new ClientGone("the client went away")));
  });
}
