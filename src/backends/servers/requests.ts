/** One POST to an inference server. Uses undici's dispatch, because its fetch and streams take longer than the gateway itself. */
import { type Dispatcher, errors } from "undici";
import { RunError, UserError } from "../../base/errors.ts";
import { isTemporaryStatus, reasonOf, retryAfterSeconds } from "../../base/http.ts";
import { concatenate } from "../../base/values.ts";
import type { EngineImages, SampleRequest } from "../engine.ts";
import { ConnectionBroken, type Server, ServerFailed, ServerStalled } from "./group.ts";

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

// Images in requests to servers. The prompt has one placeholder for each image, which the server expands.

/** The image tokens of the trainer's model, which the servers also have. */
export type ServedImages = Omit<EngineImages, "tokensOf">;

/** How a kind of server reads the images of a prompt. */
export interface ImageReading {
  /** Which placeholders it reads as images: the first ones, as many as there are images, or all. */
  placeholders: "first" | "all";
  /** Whether it blends transparent pixels with white, as the trainer does. */
  transparency: boolean;
}

/** A prompt with images in the form for servers. */
export interface ServedRequest extends SampleRequest {
  /** Data URLs, one for each placeholder of the prompt; absent if there are none. */
  images?: readonly string[];
}

/**
 * @throws UserError if the server would read an image differently from the trainer
 * @throws Error if the model itself sampled a placeholder that the server would use for an image
 */
export async function toServed(
  request: SampleRequest,
  images: ServedImages | undefined,
  reading: ImageReading | undefined,
): Promise<ServedRequest> {
  const { prompt, media = [] } = request;
  if (media.length === 0) return request;
  if (images === undefined) throw new UserError("this sampler does not send images to its inference server");
  const { placeholder, store, transparent } = images;
  const pieces: Int32Array[] = [];
  let read = 0;
  for (const { at, length, hash } of media) {
    if (!reading?.transparency && transparent?.has(hash))
      throw new UserError(`the image ${hash} has transparent pixels`, { hint: opaque });
    const before = prompt.subarray(read, at);
    if (before.includes(placeholder.id)) {
      throw new Error(
        `the model sampled ${placeholder.text} before an image, so the inference server would assign the image to the wrong place`,
      );
    }
    pieces.push(before, Int32Array.of(placeholder.id));
    read = at + length;
  }
  const rest = prompt.subarray(read);
  if (reading?.placeholders === "all" && rest.includes(placeholder.id)) {
    throw new Error(
      `the model sampled ${placeholder.text} after the last image, and the inference server would look for a further image`,
    );
  }
  const urls = media.map(async ({ hash }) => toDataUrl(await store.read(hash)));
  return {
    ...request,
    prompt: concatenate(Int32Array, [...pieces, rest]),
    images: await Promise.all(urls),
  };
}

const opaque = "save it without transparency: the trainer blends it with white, and this inference server does not";

/** Only PNG files begin with the byte 0x89. */
const toDataUrl = (bytes: Uint8Array) =>
  `data:image/${bytes[0] === 0x89 ? "png" : "jpeg"};base64,${Buffer.from(bytes).toString("base64")}`;

/**
 * @param given the prompt that the server returned
 * @param hint how to start the server
 * @throws UserError if it differs from the trainer's, because then the images' features would be at other places
 */
export function requireSamePrompt({ prompt }: SampleRequest, given: unknown, hint: string): void {
  if (!Array.isArray(given)) {
    throw new UserError("the inference server's answer to a prompt with images has no prompt_token_ids", {
      hint: "use vLLM 0.32 or newer, or SGLang 0.5.13 or newer",
    });
  }
  const at = prompt.findIndex((token, index) => token !== given[index]);
  if (at === -1 && given.length === prompt.length) return;
  throw new UserError(
    `the inference server has ${given.length} tokens for a prompt with images, the trainer ${prompt.length}. They differ from token ${at === -1 ? prompt.length : at} on, because the image processors differ`,
    { hint },
  );
}
