/** One POST to an inference server. Uses undici's dispatch, because its fetch and streams take longer than the gateway itself. */
import { type Dispatcher, errors } from "undici";
import { RunError, UserError } from "../../../errors.ts";
import { isTemporaryStatus, reasonOf, retryAfterSeconds } from "../../../http/retries.ts";
import { ConnectionBroken, type Server, ServerFailed, ServerStalled } from "../server.ts";

export interface PostOptions {
  server: Pick<Server, "pool" | "url" | "headers" | "timeoutSeconds">;
  path: string;
  body: string;
  signal: AbortSignal | undefined;
  /** Receives the answer piece by piece; `post` then returns an empty text. */
  onText: ((text: string) => void) | undefined;
}

/** The statuses of a request that would be refused again, such as one with too long a prompt. */
const refused = [400, 413, 422];

/**
 * @returns the answer's text, empty with `onText`
 * @throws ServerFailed when the server fails, hangs, or has no time, so that another one can be asked
 * @throws UserError when it refuses the request, RunError after another error, the signal's reason when aborted
 */
export function post({ server, path, body, signal, onText }: PostOptions): Promise<string> {
  const { pool, url, headers } = server;
  return new Promise((resolve, reject) => {
    let controller: Dispatcher.DispatchController | undefined;
    let status = 0;
    let askedSeconds: number | undefined;
    const chunks: Buffer[] = [];
    const decoder = onText && new TextDecoder();
    const stop = () => {
      reject(signal?.reason);
      controller?.abort(signal?.reason instanceof Error ? signal.reason : new Error("aborted"));
    };
    const done = () => signal?.removeEventListener("abort", stop);
    if (signal?.aborted) return reject(signal.reason);
    signal?.addEventListener("abort", stop, { once: true });
    const fail = (error: unknown) => {
      done();
      reject(error);
    };
    pool.dispatch(
      { path, method: "POST", headers, body },
      {
        onRequestStart(started) {
          controller = started;
          if (signal?.aborted) stop();
        },
        onResponseStart(_, statusCode, { "retry-after": retryAfter }) {
          status = statusCode;
          askedSeconds = retryAfterSeconds([retryAfter].flat()[0]);
        },
        onResponseData(_, chunk) {
          if (decoder === undefined || status >= 400) {
            chunks.push(chunk);
            return;
          }
          try {
            onText?.(decoder.decode(chunk, { stream: true }));
          } catch (error) {
            fail(error);
            controller?.abort(error instanceof Error ? error : new Error(String(error)));
          }
        },
        onResponseEnd() {
          done();
          const text = chunks.length === 1 ? chunks[0]!.toString() : Buffer.concat(chunks).toString();
          if (status < 400) return resolve(text);
          const answer = `the inference server at ${url} answered ${status}: ${text.slice(0, 500)}`;
          if (isTemporaryStatus(status)) {
            reject(Object.assign(new ServerFailed(answer), { retryAfterSeconds: askedSeconds }));
          } else reject(new (refused.includes(status) ? UserError : RunError)(answer));
        },
        onResponseError(_, error) {
          fail(hasStalled(error) ? stalled(server) : broken(url, error, status > 0));
        },
      },
    );
  });
}

const hasStalled = (error: unknown) =>
  error instanceof errors.HeadersTimeoutError || error instanceof errors.BodyTimeoutError;

function stalled({ url, timeoutSeconds }: PostOptions["server"]): ServerStalled {
  const why = `a request made no progress for ${timeoutSeconds} s`;
  return new ServerStalled(`the inference server at ${url} hangs: ${why}`, why);
}

function broken(url: string, error: unknown, hasAnswered: boolean): ServerFailed {
  const message = `the connection to the inference server at ${url} failed: ${reasonOf(error)}`;
  return new (hasAnswered ? ServerFailed : ConnectionBroken)(message, { cause: error });
}
