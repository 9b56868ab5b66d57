/** Reading what a request carries. */
import type { Context } from "hono";
import { HttpError } from "../http-error.ts";

/** @throws HttpError 400 when the body is no JSON object */
export async function jsonBody(c: Context): Promise<Record<string, unknown>> {
  return parseObject(await c.req.text());
}

export function parseObject(text: string): Record<string, unknown> {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    throw new HttpError(400, `the body is no JSON: ${cause instanceof Error ? cause.message : cause}`, { cause });
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new HttpError(400, "the body is no JSON object");
  }
  return value as Record<string, unknown>;
}

/**
 * A whole number of a JSON text, digit by digit: `JSON.parse` rounds those beyond 2^53. A quote inside a text is
 * escaped there, so the key cannot be part of one.
 */
export function integerField(text: string, key: string): string | undefined {
  return new RegExp(`"${key}"\\s*:\\s*(\\d+)`).exec(text)?.[1];
}

/** A whole number of the query, within bounds. */
export function countOf(c: Context, name: string, fallback: number, most: number): number {
  const text = c.req.query(name);
  if (text === undefined) return fallback;
  if (!/^\d+$/.test(text)) throw new HttpError(400, `${name} is "${text}", not a whole number`);
  return Math.min(Number(text), most);
}
