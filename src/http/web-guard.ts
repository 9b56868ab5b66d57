/** Keeps web pages away from the servers of this machine: cross-origin requests and DNS rebinding. */

/** @param host a name or an address, for IPv6 with or without brackets */
export const isLoopback = (host: string): boolean => /^(127(\.\d{1,3}){3}|\[?::1\]?|localhost)$/i.test(host);

export interface WebHeaders {
  host: string | undefined;
  origin: string | undefined;
}

/**
 * Returns why a request is refused, or undefined.
 *
 * Browsers send `Origin` with requests of web pages. With DNS rebinding, a page's own host name points to this machine, and
 * `Host` is that name. A page does not have a key, so a server that requires one does not need to check `Host`. The port is
 * not compared, because it may be forwarded.
 */
export function webRefusal(
  { host, origin }: WebHeaders,
  { keyRequired }: { keyRequired: boolean },
): string | undefined {
  if (origin !== undefined) return "requests from web pages are not answered";
  if (keyRequired || host === undefined || isLoopback(host.replace(/:\d*$/, ""))) return undefined;
  return `the Host header ${JSON.stringify(host.slice(0, 100))} does not name this machine; without API keys only localhost, 127.0.0.1 and [::1] are answered`;
}

/** `application/json`, or a type that is written as JSON. */
export const isJsonType = (contentType: string | undefined): boolean =>
  /^application\/([\w.-]+\+)?json\s*(;|$)/i.test(contentType ?? "");
