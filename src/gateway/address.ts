/** Where a session lives in the gateway's address space: its model calls are told apart by path alone. */

/** Whose call it is. */
export interface CallSource {
  session: string;
  attempt: number;
  /** Undefined: the session's own role. */
  role: string | undefined;
}

export interface Address {
  source: CallSource | undefined;
  /** What follows the session, e.g. `"/v1/chat/completions"`. */
  endpoint: string;
}

const sessionPath = /^\/s\/([^/]+)\/a\/(\d{1,9})(?:\/r\/([^/]+))?(\/.*)$/;

/** The session's part of a base URL; what an API adds (`/v1`, `/v1/messages`) follows. */
export function sessionPrefix({ session, attempt, role }: CallSource): string {
  const prefix = `/s/${encodeURIComponent(session)}/a/${attempt}`;
  return role === undefined ? prefix : `${prefix}/r/${encodeURIComponent(role)}`;
}

/**
 * @param path without query
 * @throws URIError when a name is not encoded as URLs want it
 */
export function parseAddress(path: string): Address {
  const match = path.startsWith("/s/") ? sessionPath.exec(path) : null;
  if (match === null) return { source: undefined, endpoint: path };
  const [, session = "", attempt = "", role, endpoint = ""] = match;
  const source = {
    session: decodeURIComponent(session),
    attempt: Number(attempt),
    role: role === undefined ? undefined : decodeURIComponent(role),
  };
  return { source, endpoint };
}
