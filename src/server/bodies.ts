/** Reads and checks the bodies of requests. */
import type { Context } from "hono";
import { z } from "zod";
import { messageOf, UserError } from "../errors.ts";
import { parseObject } from "../http/parse-object.ts";
import { isJsonType } from "../http/web-guard.ts";
import { HttpError } from "./http-error.ts";

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
