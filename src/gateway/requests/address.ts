/** Addresses of sessions: the path alone names the session, attempt and role that a call belongs to. */
import { GatewayError } from "./gateway-error.ts";

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
