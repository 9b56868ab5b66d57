/**
 * HTTP of the gateway: the addresses of sessions, who may call, one request and its answer, errors in the shape of each API, and tunnels.
 * Knows nothing about models.
 *
 * It uses node:http, while `hone serve` and `hone view` use Hono: a gateway call is short and frequent. A POST of 4 KB of messages with a
 * JSON answer, 32 connections, on two busy cores: 45 µs of processor time on node:http and 116 µs on Hono's Node server (medians of 6
 * runs of 20,000 requests), where a whole gateway call takes 70 µs. An exchange also needs what the standard Request hides: whether the
 * client has disconnected, and pooled abort signals (base/concurrency.ts). The others have many routes and few calls, each of which
 * computes or queries for milliseconds, so they use a router whose routes are tested without a port.
 */

import { spawn } from "node:child_process";
import { createHash, createHmac, timingSafeEqual } from "node:crypto";
import type { IncomingMessage, ServerResponse } from "node:http";
import { createInterface } from "node:readline";
import { promisify } from "node:util";
import { gunzip } from "node:zlib";
import { giveBackAbortController, takeAbortController } from "../base/concurrency.ts";
import { messageOf, RunError, UserError } from "../base/errors.ts";
import { isJsonType, isLoopback, parseObject, webRefusal } from "../base/http.ts";
import { guardGroup } from "../base/processes.ts";
import { beginningOf } from "../base/text.ts";

// Addresses of sessions: the path alone names the session, attempt and role that a call belongs to.

/** The session that a call belongs to. */
export interface CallSource {
  session: string;
  attempt: number;
  /** Undefined: the session's own role. */
  role: string | undefined;
}

export interface Address {
  source: CallSource | undefined;
  /** The rest of the path, e.g. `"/v1/chat/completions"`. */
  endpoint: string;
}

const sessionPath = /^\/s\/([^/]+)\/a\/(\d{1,9})(?:\/r\/([^/]+))?(\/.*)$/;

/** The session's part of a base URL; an API adds its own (`/v1`, `/v1/messages`). */
export function sessionPrefix({ session, attempt, role }: CallSource): string {
  const prefix = `/s/${encodeURIComponent(session)}/a/${attempt}`;
  return role === undefined ? prefix : `${prefix}/r/${encodeURIComponent(role)}`;
}

/** @param path without query */
export function parseAddress(path: string): Address {
  const match = path.startsWith("/s/") ? sessionPath.exec(path) : null;
  if (match === null) return { source: undefined, endpoint: path };
  const [, session = "", attempt = "", role, endpoint = ""] = match;
  const source = {
    session: decodePart(session),
    attempt: Number(attempt),
    role: role === undefined ? undefined : decodePart(role),
  };
  return { source, endpoint };
}

/** @throws GatewayError when a part of the path is not percent-encoded */
export function decodePart(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    throw new GatewayError("not_found", `${part} in the path is not percent-encoded, which URLs require`);
  }
}

/** Calls to an address without a session, for gateways that accept unknown sessions. */
export const sourceOf = ({ source }: Address): CallSource =>
  source ?? { session: "default", attempt: 0, role: undefined };

// Who may call the gateway: every process of this machine, or, if other machines can reach it, only clients with a key.

/** The admin token of the reference's documents, which everybody knows. */
export const defaultAdminToken = "my-shared-secret";

export interface Access {
  /** Where other machines reach the gateway; undefined: they cannot, and no key is required. */
  readonly reachableAt: string | undefined;
  /** @throws GatewayError for requests of web pages */
  checkWeb(exchange: HttpExchange): void;
  /** The key for a session's agent. */
  keyOf(source: Pick<CallSource, "session" | "attempt">): string;
  /** @throws GatewayError when a key is required and the client has neither this session's nor the admin token */
  checkCall(exchange: HttpExchange, source: CallSource): void;
  /** @throws GatewayError when the client does not send the admin token */
  checkAdmin(exchange: HttpExchange): void;
}

/**
 * @param publicUrl the address of a tunnel or proxy in front of the gateway, or the program that will open one
 * @throws UserError when other machines could use the gateway with the default admin token
 */
export function createAccess(host: string, adminToken: string, publicUrl?: string): Access {
  const reachableAt = findPublicAddress(host, publicUrl);
  const open = reachableAt === undefined;
  if (!open && (adminToken === defaultAdminToken || adminToken === "")) {
    throw new UserError(`the gateway can be reached at ${reachableAt} and has the default admin token`, {
      hint: "set rllm.sdk.proxy.admin_token to your own secret, or listen on 127.0.0.1 without rllm.gateway.tunnel",
    });
  }
  const keyOf: Access["keyOf"] = ({ session, attempt }) =>
    `hone-${createHmac("sha256", adminToken).update(`${attempt} ${session}`).digest("base64url").slice(0, 32)}`;

  return {
    reachableAt,
    keyOf,
    checkWeb(exchange) {
      const headers = { host: exchange.header("host"), origin: exchange.header("origin") };
      const refusal = webRefusal(headers, { keyRequired: !open });
      if (refusal !== undefined) throw new GatewayError("forbidden", refusal);
    },
    checkCall(exchange, source) {
      if (open) return;
      const key = keyFrom(exchange);
      if (key !== undefined && (equal(key, keyOf(source)) || equal(key, adminToken))) return;
      throw new GatewayError("authentication", "this session requires its API key; send it as a bearer token");
    },
    checkAdmin(exchange) {
      if (adminToken === defaultAdminToken || adminToken === "") {
        throw new GatewayError(
          "authentication",
          "this route requires rllm.sdk.proxy.admin_token, and the run has the default",
        );
      }
      const key = keyFrom(exchange);
      if (key !== undefined && equal(key, adminToken)) return;
      throw new GatewayError("authentication", "this route requires the admin token as a bearer token");
    },
  };
}

function findPublicAddress(host: string, publicUrl: string | undefined): string | undefined {
  if (publicUrl !== undefined && Object.hasOwn(tunnelPrograms, publicUrl)) return `the address that ${publicUrl} opens`;
  if (publicUrl !== undefined) {
    const url = URL.canParse(publicUrl) ? new URL(publicUrl) : undefined;
    if (url === undefined || !/^https?:$/.test(url.protocol)) {
      throw new UserError(
        `rllm.gateway.tunnel=${publicUrl} is not an http:// or https:// address, cloudflared or ngrok`,
      );
    }
    if (!isLoopback(url.hostname)) return publicUrl;
  }
  return isLoopback(host) ? undefined : host;
}

function keyFrom(exchange: HttpExchange): string | undefined {
  const bearer = /^Bearer\s+(.+)$/i.exec(exchange.header("authorization") ?? "")?.[1];
  return bearer ?? exchange.header("x-api-key");
}

/** Takes the same time for all texts. */
function equal(left: string, right: string): boolean {
  const digest = (text: string) => createHash("sha256").update(text).digest();
  return timingSafeEqual(digest(left), digest(right));
}

// One HTTP request and its answer: reads the body, answers once or streams events, and notices when the client disconnects.

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

// The error of a call that cannot be answered, in the shape of each API.

export type ErrorKind =
  /** The request is wrong, or asks for something that cannot be guaranteed. */
  | "invalid_request"
  /** The prompt is longer than the limits allow. */
  | "prompt_too_long"
  | "authentication"
  /** A web page sent the request. */
  | "forbidden"
  | "not_found"
  /** The rollout of this address has ended. */
  | "session_ended"
  | "too_large"
  /** The body is not declared as JSON. */
  | "wrong_type"
  /** The client wants a WebSocket. */
  | "no_websocket"
  /** The engine did not answer with a sample. */
  | "engine_failed"
  | "timeout";

type Spelling = [status: number, openaiType: string, openaiCode: string | null, anthropicType: string];

const invalid = "invalid_request_error";
const spellings: Record<ErrorKind, Spelling> = {
  invalid_request: [400, invalid, null, invalid],
  prompt_too_long: [400, invalid, "context_length_exceeded", invalid],
  authentication: [401, "authentication_error", "invalid_api_key", "authentication_error"],
  forbidden: [403, invalid, "forbidden", "permission_error"],
  not_found: [404, invalid, "not_found", "not_found_error"],
  session_ended: [410, invalid, "session_ended", invalid],
  too_large: [413, invalid, "request_too_large", "request_too_large"],
  wrong_type: [415, invalid, "unsupported_media_type", invalid],
  no_websocket: [426, invalid, "websocket_not_supported", invalid],
  engine_failed: [500, "server_error", "engine_failed", "api_error"],
  timeout: [504, "server_error", "timeout", "timeout_error"],
};

/** A message may repeat what a client sent. */
const longestMessage = 4000;

export class GatewayError extends Error {
  override name = "GatewayError";
  readonly kind: ErrorKind;
  /** The parameter that is wrong, as the client spelled it. */
  readonly parameter: string | null;

  constructor(kind: ErrorKind, message: string, options: { parameter?: string; cause?: unknown } = {}) {
    super(beginningOf(message, longestMessage), options.cause === undefined ? undefined : { cause: options.cause });
    this.kind = kind;
    this.parameter = options.parameter ?? null;
  }

  get status(): number {
    return spellings[this.kind][0];
  }
}

export type ErrorShape = (error: GatewayError) => unknown;

/** `{ error: { message, type, param, code } }` */
export const openaiError: ErrorShape = ({ message, parameter, kind }) => {
  const [, type, code] = spellings[kind];
  return { error: { message, param: parameter, type, code } };
};

/** `{ type: "error", error: { type, message } }` */
export const anthropicError: ErrorShape = ({ message, kind }) => ({
  type: "error",
  error: { type: spellings[kind][3], message },
});

// Opens a tunnel to the gateway: starts cloudflared or ngrok, and reads the public address that it prints.

interface Program {
  args(port: number): string[];
  /** Finds the address in a line of its output. */
  address: RegExp;
  install: string;
}

/** `rllm.gateway.tunnel` names one of these, or an address. */
export const tunnelPrograms: Readonly<Record<string, Program>> = {
  cloudflared: {
    args: (port) => ["tunnel", "--no-autoupdate", "--url", `http://127.0.0.1:${port}`],
    // INF |  https://four-words-of-it.trycloudflare.com  |
    address: /\bINF \|\s+(https:\/\/[a-z0-9.-]+)\s+\|/,
    install: "install cloudflared (quick tunnels need no account)",
  },
  ngrok: {
    args: (port) => ["http", String(port), "--log=stdout", "--log-format=logfmt"],
    // lvl=info msg="started tunnel" obj=tunnels name=command_line addr=http://localhost:4100 url=https://....ngrok-free.app
    address: /msg="started tunnel".*\burl=(https:\/\/\S+)/,
    install: 'install ngrok, and save your account\'s token with "ngrok config add-authtoken ..."',
  },
};

export interface Tunnel {
  /** The public address, without a slash at its end. */
  url: string;
  close(): Promise<void>;
}

const keptLines = 8;

/**
 * @param port where the gateway listens or will listen
 * @param onEnd called with the reason if the program ends before it is closed
 * @throws UserError if the program is missing; RunError if it does not print an address in time, or ends
 */
export async function openTunnel(
  name: string,
  port: number,
  onEnd: (why: string) => void,
  timeoutSeconds = 60,
): Promise<Tunnel> {
  const program = tunnelPrograms[name] as Program;
  const child = spawn(name, program.args(port), { stdio: ["ignore", "pipe", "pipe"], detached: true });
  const lines: string[] = [];
  let open = true;
  const gone = new Promise<string>((resolve) => {
    child.once("error", (error: NodeJS.ErrnoException) => resolve(error.code === "ENOENT" ? "missing" : error.message));
    child.once("close", (code, signal) => resolve(`ended ${signal ? `by ${signal}` : `with exit code ${code}`}`));
  });
  const release = child.pid === undefined ? () => {} : guardGroup(child.pid);
  const said = () => lines.map((line) => `\n  ${line}`).join("");
  const address = new Promise<string>((resolve) => {
    // Both programs write to either stream, depending on their version.
    for (const stream of [child.stdout, child.stderr]) {
      createInterface({ input: stream }).on("line", (line) => {
        if (lines.push(line.slice(0, 500)) > keptLines) lines.shift();
        const found = program.address.exec(line)?.[1];
        if (found !== undefined) resolve(found);
      });
    }
  });
  async function close(): Promise<void> {
    open = false;
    child.kill("SIGTERM");
    const forced = setTimeout(() => child.kill("SIGKILL"), 3000);
    await gone;
    clearTimeout(forced);
    release();
  }
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<{ why: string }>((resolve) => {
    timer = setTimeout(
      () => resolve({ why: `printed no address within ${timeoutSeconds} seconds` }),
      timeoutSeconds * 1000,
    );
  });
  const first = await Promise.race([address, late, gone.then((why) => ({ why }))]);
  clearTimeout(timer);
  if (typeof first !== "string" || isLoopback(new URL(first).hostname)) {
    await close();
    if (typeof first === "string")
      throw new RunError(`${name} opened a tunnel at ${first}, which only this machine reaches`);
    if (first.why === "missing") {
      throw new UserError(`rllm.gateway.tunnel=${name}: the program ${name} is not installed`, {
        hint: `${program.install}, or set the key to the address of a tunnel of your own`,
      });
    }
    throw new RunError(`${name} opened no tunnel: it ${first.why}${said()}`, { hint: program.install });
  }
  gone.then((why) => {
    release();
    if (open) onEnd(`${name} ${why}; agents on other machines can no longer reach the gateway${said()}`);
  });
  // An idle tunnel does not keep this process alive.
  child.unref();
  for (const stream of [child.stdout, child.stderr]) (stream as unknown as { unref(): void }).unref();
  return { url: first.replace(/\/+$/, ""), close };
}
