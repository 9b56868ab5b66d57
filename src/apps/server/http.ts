/** Requests and error responses of the server: bodies are read and checked, and errors get the text that the client shows its user. */

import type { Context } from "hono";
import { z } from "zod";
import { HoneError, messageOf, UserError } from "../../base/errors.ts";
import { isJsonType, parseObject } from "../../base/http.ts";
import { beginningOf } from "../../base/text.ts";

/**
 * Tinker's clients retry some statuses for minutes, so lasting conditions do not use them: 409 is never sent, and 429
 * only if a retry helps.
 */
const longestMessage = 4000;

/** A message that may repeat what a client sent. */
export const clipped = (message: string): string => beginningOf(message, longestMessage);

export class HttpError extends UserError {
  override name = "HttpError";
  readonly status: 400 | 401 | 403 | 404 | 410 | 413 | 415 | 422 | 429 | 503;

  constructor(status: HttpError["status"], message: string, options: { cause?: unknown } = {}) {
    super(message, options);
    this.status = status;
  }
}

/** The answer to a request that failed. Only the first line of a server's error is for clients. */
export function answerTo(error: unknown): { status: HttpError["status"] | 500; detail: string } {
  if (error instanceof HttpError) return { status: error.status, detail: clipped(error.message) };
  if (error instanceof UserError) {
    return { status: 400, detail: clipped(error.hint ? `${error.message}. ${error.hint}` : error.message) };
  }
  if (!(error instanceof HoneError)) return { status: 500, detail: "the server failed; its log says why" };
  const [detail = ""] = error.message.split("\n", 1);
  return { status: ["engine_down", "engine_died"].includes(error.code) ? 503 : 500, detail: clipped(detail) };
}

// Reads and checks the bodies of requests.

/** @throws HttpError when the body is not a JSON object or not declared as JSON */
export const jsonBody = async (c: Context): Promise<Record<string, unknown>> => (await jsonText(c)).body;

/** The object and the text that it was parsed from. */
export async function jsonText(c: Context): Promise<{ text: string; body: Record<string, unknown> }> {
  requireType(c, isJsonType, "application/json");
  const text = await c.req.text();
  try {
    return { text, body: parseObject(text) };
  } catch (cause) {
    throw new HttpError(400, messageOf(cause), { cause });
  }
}

/** The bytes of a protobuf message. */
export async function protobufBody(c: Context): Promise<Uint8Array> {
  const isProtobuf = (type: string | undefined) =>
    /^application\/(x-|vnd\.google\.)?protobuf\s*(;|$)/i.test(type ?? "");
  requireType(c, isProtobuf, "application/x-protobuf");
  return new Uint8Array(await c.req.arrayBuffer());
}

function requireType(c: Context, fits: (type: string | undefined) => boolean, expected: string): void {
  const type = c.req.header("content-type");
  if (fits(type)) return;
  throw new HttpError(415, `the Content-Type is ${type ?? "missing"}; ${c.req.path} takes ${expected}`);
}

/** @throws UserError that names the field */
export function readBody<S extends z.ZodType>(schema: S, body: unknown): z.output<S> {
  const parsed = schema.safeParse(body);
  if (!parsed.success) throw new UserError(parsed.error.issues.map(describe).join("; "));
  return parsed.data;
}

/** `adam_params.learning_rate must be a number of at least 0, but is -1` */
function describe({ path, message }: z.core.$ZodIssue): string {
  const place = path.join(".");
  if (message.startsWith("must be")) return `${place} ${message}`;
  return place === "" ? message : `${place}: ${message}`;
}

/** Names that clients give. They are kept in records and logged, so their length is limited, as is that of notes and metadata. */
export const clientName = z.string().max(512);
/** The reason that a client gives for its end, which may be an error of its own. */
export const clientNote = z.string().max(65_536);

const maxMetadata = 65_536;

export const clientMetadata = z
  .record(clientName, z.unknown())
  .refine((value) => JSON.stringify(value).length <= maxMetadata, `is longer than ${maxMetadata} characters as JSON`);

export const clientTags = z.array(clientName).max(64);

// Engines give advice in the keys of a run's configuration; `hone serve` has flags in their place.

const names: readonly (readonly [RegExp, string])[] = [
  [/\blocal\.gradient_checkpointing=true/g, "--gradient-checkpointing"],
  [/\blocal\.(device|dtype|threads)=(\w+)/g, "--$1 $2"],
  [/\blocal\.(device|dtype|threads)\b/g, "--$1"],
  [/\blocal\.micro_batch_tokens\b/g, "--micro-batch-tokens"],
  [/\blocal\.max_sample_rows\b/g, "--max-sample-rows"],
  [/\bdata\.max_response_length\b/g, "max_tokens"],
];

/** The text with the flags of `hone serve`. */
export const withFlags = (text: string): string => names.reduce((each, [key, flag]) => each.replace(key, flag), text);
