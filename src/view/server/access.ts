/** Access control: allows browsers on this machine, and clients that have the token. */
import { createHash, timingSafeEqual } from "node:crypto";
import { isLoopback, webRefusal } from "../../http/web-guard.ts";

export const tokenCookie = "hone_view";

export interface Given {
  host: string | undefined;
  origin: string | undefined;
  /** The token of a request, from its address, its cookie or its Authorization header. */
  token: string | undefined;
}

/** Returns the status and why a request is refused, or undefined. @param token null: none is required */
export function refusal({ host, origin, token: given }: Given, token: string | null): [401 | 403, string] | undefined {
  // The Origin of the page's own requests is the page's own address.
  const own = origin !== undefined && host !== undefined && [`http://${host}`, `https://${host}`].includes(origin);
  const web = webRefusal({ host, origin: own ? undefined : origin }, { keyRequired: token !== null });
  if (web !== undefined) return [403, web];
  if (token === null || (given !== undefined && isSame(given, token))) return undefined;
  return [401, "this viewer needs its token: open the address that hone view printed"];
}

const digest = (text: string) => createHash("sha256").update(text).digest();
const isSame = (left: string, right: string) => timingSafeEqual(digest(left), digest(right));

export const needsToken = (host: string): boolean => !isLoopback(host);

/** The page runs only its own scripts and talks only to this server. */
export const contentPolicy =
  "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
