/** An HTTP request with any header, Host included, which `fetch` does not allow. */
import { request } from "node:http";
import { text } from "node:stream/consumers";

export interface RawAnswer {
  status: number;
  headers: Record<string, string | string[] | undefined>;
  text: string;
}

export interface RawRequest {
  method?: string;
  /** As it is written into the request; default: the URL's. */
  path?: string;
  headers?: Record<string, string>;
  body?: string | Uint8Array;
}

export function rawRequest(url: string, { method = "GET", path, headers = {}, body }: RawRequest = {}) {
  const { hostname, port, pathname, search } = new URL(url);
  return new Promise<RawAnswer>((resolve, reject) => {
    // Node sends no length with the body of a DELETE or OPTIONS request.
    const length = body === undefined ? {} : { "content-length": String(Buffer.byteLength(body)) };
    const options = {
      host: hostname,
      port,
      method,
      path: path ?? pathname + search,
      headers: { ...headers, ...length },
    };
    const sent = request(options, (answer) => {
      text(answer).then(
        (found) => resolve({ status: answer.statusCode ?? 0, headers: answer.headers, text: found }),
        reject,
      );
    });
    sent.once("error", reject);
    sent.end(body);
  });
}
