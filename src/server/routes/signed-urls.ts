/** Addresses that work without the key for a while, until the server ends. */
import { createHmac, randomBytes, timingSafeEqual } from "node:crypto";
import type { Context } from "hono";
import { HttpError } from "../http-error.ts";

const validMs = 3_600_000;
const secret = randomBytes(32);

const sign = (method: string, path: string, file: string, expires: number): string =>
  createHmac("sha256", secret).update([method, path, file, expires].join("\n")).digest("hex");

/** Addresses for the files under `path` of this server, and when they expire. */
export function signedUrls(c: Context, method: "GET" | "PUT", path: string, files: readonly string[], now: Date) {
  const expires = now.getTime() + validMs;
  const { origin } = new URL(c.req.url);
  const urls = files.map((file) => {
    const query = new URLSearchParams({
      file,
      expires: String(expires),
      signature: sign(method, path, file, expires),
    });
    return [file, `${origin}${path}?${query}`] as const;
  });
  return { urls: Object.fromEntries(urls), expires: new Date(expires).toISOString() };
}

/** The file that a signed address names. @throws HttpError 403 */
export function requireSigned(c: Context, now: Date): string {
  const { file = "", expires = "", signature = "" } = c.req.query();
  const expected = Buffer.from(sign(c.req.method, c.req.path, file, Number(expires)));
  const given = Buffer.from(signature);
  const valid = given.length === expected.length && timingSafeEqual(given, expected);
  if (!valid || Number(expires) < now.getTime()) throw new HttpError(403, "this address is invalid or has expired");
  return file;
}
