/** Whose call a request is: its path says it, or nobody does. */

import { isObject } from "../is-object.ts";
import { type Address, type CallSource, parseAddress } from "./address.ts";
import { GatewayError } from "./gateway-error.ts";
import type { HttpExchange } from "./http-exchange.ts";

/** The session of calls at the plain address, for gateways that take unknown sessions. */
const plainSession = "default";

export function readAddress(path: string): Address {
  return orNotFound(path, () => parseAddress(path));
}

/** @throws GatewayError when a part of the path is not percent-encoded as URLs require */
export const decodePart = (part: string): string => orNotFound(part, () => decodeURIComponent(part));

function orNotFound<Result>(text: string, decode: () => Result): Result {
  try {
    return decode();
  } catch {
    throw new GatewayError("not_found", `${text} is not percent-encoded as URLs require`);
  }
}

export const sourceOf = ({ source }: Address): CallSource =>
  source ?? { session: plainSession, attempt: 0, role: undefined };

/** What the ambient context of an agent in this process adds to each call. */
export const metadataHeader = "x-hone-metadata";

export function readMetadata(exchange: HttpExchange): Record<string, unknown> {
  const text = exchange.header(metadataHeader);
  if (text === undefined) return {};
  try {
    const value: unknown = JSON.parse(decodeURIComponent(text));
    if (isObject(value)) return value;
  } catch {
    // Told below.
  }
  throw new GatewayError("invalid_request", `${metadataHeader} must be a JSON object, percent-encoded`);
}
