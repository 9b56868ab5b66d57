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
 * Browsers send `Origin` with requests of web pages, and the page's own name as `Host` where that name was made to point
 * at this machine. A page has no key, so servers that require one need no check of `Host`. The port is not compared: it
 * may be forwarded.
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
