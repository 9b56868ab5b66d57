/** One HTTP request and its answer: reads the body, answers once or streams events, and notices when the client disconnects. */
import type { IncomingMessage, ServerResponse } from "node:http";
import { promisify } from "node:util";
import { gunzip } from "node:zlib";
import { giveBackAbortController, takeAbortController } from "../../concurrency/abort-controllers.ts";
import { messageOf } from "../../errors.ts";
import { parseObject } from "../../http/parse-object.ts";
import { isJsonType } from "../../http/web-guard.ts";
import { type ErrorShape, GatewayError } from "./gateway-error.ts";

/** Requests contain conversations as text. More than this is a mistake. */
const maxBody = 32 * 2 ** 20;

/** Sent by agents in this process: the metadata of their ambient context, as percent-encoded JSON. */
export const metadataHeader = "x-hone-metadata";

class ClientGone extends Error {
  override name = "AbortError";
}

/** A class: an object literal with getters gets its own hidden class, which keeps the whole request out of young collections. */
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
      if (!response.writableFinished) this.abort(new ClientGone("the client disconnected"));
    });
  }

  get query(): URLSearchParams {
    return new URLSearchParams(this.#queryAt < 0 ? "" : this.#request.url?.slice(this.#queryAt + 1));
  }

  header(name: string): string | undefined {
    const value = this.#request.headers[name];
    return Array.isArray(value) ? value[0] : value;
  }

  /** Aborted when the client disconnects before it is answered, or by `abort`. */
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

  /** Call it when `signal` is no longer used. */
  release(): void {
    if (this.#stop) giveBackAbortController(this.#stop);
    this.#stop = undefined;
  }

  /** The client has disconnected. */
  get gone(): boolean {
    return this.#response.destroyed;
  }

  /** @throws GatewayError when the body is not a JSON object, is not declared as JSON, or is larger than the limit */
  readObject(): Promise<Record<string, unknown>> {
    return readObject(this.#request);
  }

  /** @throws GatewayError when the header is not a percent-encoded JSON object */
  readMetadata(): Record<string, unknown> {
    const text = this.header(metadataHeader);
    if (text === undefined) return {};
    try {
      return parseObject(decodeURIComponent(text));
    } catch {
      throw new GatewayError("invalid_request", `${metadataHeader} must be a percent-encoded JSON object`);
    }
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

  /** Answers with the error. In a stream that has begun it is the last event. */
  sendError(error: GatewayError, shape: ErrorShape): void {
    const response = this.#response;
    const body = JSON.stringify(shape(error));
    if (response.headersSent) {
      this.sendEvent(body, "error");
      this.end();
      return;
    }
    if (response.destroyed) return;
    if (error.kind === "too_large") response.setHeader("connection", "close");
    // The status 426 requires it.
    if (error.kind === "no_websocket") response.setHeader("upgrade", "HTTP/1.1");
    response.writeHead(error.status, {
      "content-type": "application/json",
      "content-length": Buffer.byteLength(body),
      // Only the rollout decides about retries; official clients obey this header.
      "x-should-retry": "false",
    });
    response.end(body);
  }

  /** Begins a stream of server-sent events. @returns false if it has begun already, or the client is gone */
  startEvents(): boolean {
    if (this.#response.destroyed || this.#response.headersSent) return false;
    this.#response.writeHead(200, { "content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache" });
    return true;
  }

  /** @param name of the event, for APIs that name their events */
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
      `send JSON with the header Content-Type: application/json; it is ${type ?? "missing"}`,
    );
  }
  if (Number(request.headers["content-length"] ?? 0) > maxBody) throw tooLarge();
  const text = await unpack(await readBody(request), request.headers["content-encoding"]);
  try {
    return parseObject(text);
  } catch (error) {
    throw new GatewayError("invalid_request", messageOf(error));
  }
}

const tooLarge = () => new GatewayError("too_large", `the request is larger than ${maxBody / 2 ** 20} MiB`);

async function unpack(body: Buffer, encoding = "identity"): Promise<string> {
  if (encoding === "identity") return body.toString();
  if (encoding !== "gzip") throw new GatewayError("invalid_request", `send gzip or plain JSON, not ${encoding}`);
  try {
    return (await promisify(gunzip)(body, { maxOutputLength: maxBody })).toString();
  } catch (error) {
    if ((error as { code?: string }).code === "ERR_BUFFER_TOO_LARGE") throw tooLarge();
    throw new GatewayError("invalid_request", `the body is not gzip: ${(error as Error).message}`);
  }
}

function readBody(request: IncomingMessage): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    let length = 0;
    request.on("data", (chunk: Buffer) => {
      length += chunk.length;
      if (length <= maxBody) chunks.push(chunk);
      else {
        request.removeAllListeners("data").resume();
        reject(tooLarge());
      }
    });
    request.on("end", () => resolve(Buffer.concat(chunks)));
    request.on("error", () => reject(new ClientGone("the client disconnected")));
  });
}
