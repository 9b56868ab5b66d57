/** Reads the bodies of requests. */
import type { Context } from "hono";
import { parseObject } from "../../http/parse-object.ts";
import { isJsonType } from "../../http/web-guard.ts";
import { HttpError } from "../http-error.ts";

/** @throws HttpError when the body is not a JSON object or not declared as JSON */
export const jsonBody = async (c: Context): Promise<Record<string, unknown>> => (await jsonText(c)).body;

/** The object and the text that it was parsed from. */
export async function jsonText(c: Context): Promise<{ text: string; body: Record<string, unknown> }> {
  requireType(c, isJsonType, "application/json");
  const text = await c.req.text();
  try {
    return { text, body: parseObject(text) };
  } catch (cause) {
    throw new HttpError(400, cause instanceof Error ? cause.message : String(cause), { cause });
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

/**
 * A whole number of a JSON text, digit by digit: `JSON.parse` rounds those beyond 2^53. A quote inside a text is
 * escaped there, so the key cannot be part of one.
 */
export function integerField(text: string, key: string): string | undefined {
  return new RegExp(`"${key}"\\s*:\\s*(\\d+)(?![\\d.eE])`).exec(text)?.[1];
}

/** `limit` and `offset` of the query. */
export function pageOf(c: Context, usualLimit: number): { limit: number; offset: number } {
  const { limit = String(usualLimit), offset = "0" } = c.req.query();
  for (const [name, text] of Object.entries({ limit, offset })) {
    if (!/^\d+$/.test(text)) throw new HttpError(400, `${name} is "${text}", not a whole number`);
  }
  return { limit: Math.min(Number(limit), 1000), offset: Number(offset) };
}
