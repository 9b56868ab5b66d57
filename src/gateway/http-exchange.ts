/** One HTTP request and its answer: reading, answering once, streaming events, and noticing that the client has gone. */
import type { IncomingMessage, ServerResponse } from "node:http";
import { giveBackAbortController, takeAbortController } from "../concurrency/abort-controllers.ts";
import { parseObject } from "../http/parse-object.ts";
import { isJsonType } from "../http/web-guard.ts";
import { type ErrorShape, GatewayError } from "./gateway-error.ts";

/** Requests hold conversations as text; more than this is a mistake. */
const longestBody = 32 * 2 ** 20;

class ClientGone extends Error {
  override name = "AbortError";
}

/**
 * A class, since an object that is written down with getters costs a hidden class each, which keeps all of its request from
 * being collected young.
 */
export class HttpExchange {
  readonly method: string;
  /** Without query. */
  readonly path: string;
  readonly #request: IncomingMessage;
  readonly #response: ServerResponse;
  readonly #queryAt: number;
  #stop: AbortController | undefined;
  #stopped: { reason: unknown } | undefined;

  constructor(request: IncomingMessage, response: ServerResponse) {
    const url = request.url ?? "/";
    this.#request = request;
    this.#response = response;
    this.#queryAt = url.indexOf("?");
    this.method = request.method ?? "GET";
    this.path = this.#queryAt < 0 ? url : url.slice(0, this.#queryAt);
    response.once("close", () => {
      if (!response.writableFinished) this.abort(new ClientGone("the client went away"));
    });
  }

  get query(): URLSearchParams {
    return new URLSearchParams(this.#queryAt < 0 ? "" : this.#request.url?.slice(this.#queryAt + 1));
  }

  header(name: string): string | undefined {
    const value = this.#request.headers[name];
    return Array.isArray(value) ? value[0] : value;
  }

  /** Aborted when the client goes before it is answered, or by `abort`. */
  get signal(): AbortSignal {
    if (this.#stop === undefined) {
      this.#stop = takeAbortController();
      if (this.#stopped) this.#stop.abort(this.#stopped.reason);
    }
    return this.#stop.signal;
  }

  abort(reason: unknown): void {
    this.#stopped ??= { reason };
    this.#stop?.abort(reason);
  }

  /** To be called when nothing hangs on `signal` any more. */
  release(): void {
    if (this.#stop) giveBackAbortController(this.#stop);
    this.#stop = undefined;
  }

  /** The client has gone; there is nobody to answer. */
  get gone(): boolean {
    return this.#response.destroyed;
  }

  /** @throws GatewayError when the body is not a JSON object, is not declared as JSON, or is larger than the limit */
  readObject(): Promise<Record<string, unknown>> {
    return readObject(this.#request);
  }

  sendJson(status: number, body: unknown): void {
    this.sendText(status, "application/json", JSON.stringify(body));
  }

  sendText(status: number, type: string, text: string): void {
    const response = this.#response;
    if (response.destroyed || response.headersSent) return;
    response.writeHead(status, { "content-type": type, "content-length": Buffer.byteLength(text) });
    response.end(text);
  }

  /** Answers with the error; once events have begun the last one tells it. */
  sendError(error: GatewayError, shape: ErrorShape): void {
    const response = this.#response;
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
  }

  /** Begins a stream of server-sent events. @returns false if it has begun already, or the client is gone */
  startEvents(): boolean {
    if (this.#response.destroyed || this.#response.headersSent) return false;
    this.#response.writeHead(200, { "content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache" });
    return true;
  }

  /** @param name the event's name, where the API names its events */
  sendEvent(data: string, name?: string): void {
    if (this.#response.destroyed) return;
    this.#response.write(name === undefined ? `data: ${data}\n\n` : `event: ${name}\ndata: ${data}\n\n`);
  }

  end(): void {
    if (!this.#response.destroyed) this.#response.end();
  }
}

async function readObject(request: IncomingMessage): Promise<Record<string, unknown>> {
  const type = request.headers["content-type"];
  if (!isJsonType(type)) {
    throw new GatewayError(
      "wrong_type",
      `send JSON with the header Content-Type: application/json, not ${type ?? "none"}`,
    );
  }
  if (Number(request.headers["content-length"] ?? 0) > longestBody) throw tooLarge();
  const text = await readText(request);
  try {
    return parseObject(text);
  } catch (error) {
    throw new GatewayError("invalid_request", error instanceof Error ? error.message : String(error));
  }
}

const tooLarge = () => new GatewayError("too_large", `the request is larger than ${longestBody / 2 ** 20} MiB`);

function readText(request: IncomingMessage): Promise<string> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    let length = 0;
    request.on("data", (chunk: Buffer) => {
      length += chunk.length;
      if (length <= longestBody) chunks.push(chunk);
      else {
        request.removeAllListeners("data").resume();
        reject(tooLarge());
      }
    });
    request.on("end", () => resolve(chunks.length === 1 ? chunks[0]!.toString() : Buffer.concat(chunks).toString()));
    request.on("error", () => reject(new ClientGone("the client went away")));
  });
}
