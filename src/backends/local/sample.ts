/** Sampling through the worker. */
import { concatenate } from "../../concatenate.ts";
import { AsyncQueue } from "../../concurrency/async-queue.ts";
import { RunError } from "../../errors.ts";
import type { MediaStore } from "../../images/media-store.ts";
import { offsetsOf } from "../../trajectories/batch.ts";
import { type Connection, UnknownMediaError } from "../channel/connection.ts";
import type { Frame, FrameArray } from "../channel/frames.ts";
import { mediaFields, putAgain } from "../channel/media.ts";
import type { Sample, SampleOptions, SampleRequest } from "../engine.ts";

/** Yields each sample as its sequence finishes. Leaving the loop early aborts the others. */
export async function* sample(
  connection: Connection,
  store: MediaStore,
  policy: number,
  requests: readonly SampleRequest[],
  options: SampleOptions,
): AsyncGenerator<Sample, void, undefined> {
  if (requests.length === 0) return;
  try {
    yield* sampleOnce(connection, policy, requests, options);
  } catch (error) {
    // The worker answers so before it samples anything.
    if (!(error instanceof UnknownMediaError)) throw error;
    await putAgain(connection, store, error);
    yield* sampleOnce(connection, policy, requests, options);
  }
}

async function* sampleOnce(
  connection: Connection,
  policy: number,
  requests: readonly SampleRequest[],
  { signal, onToken }: SampleOptions,
): AsyncGenerator<Sample, void, undefined> {
  const samples = new AsyncQueue<Sample>();
  let ended = false;

  const media = mediaFields(requests);
  const fields = { policy, requests: requests.map(encodeRequest), stream: onToken !== undefined, ...media.fields };
  const arrays = {
    tokens: concatenate(
      Int32Array,
      requests.map(({ prompt }) => prompt),
    ),
    offsets: offsetsOf(requests.map(({ prompt }) => prompt.length)),
    ...media.arrays,
  };
  const request = connection.request("sample", fields, arrays, (frame) => {
    try {
      if (frame.header.event === "token") reportTokens(frame, onToken);
      else samples.push(decodeSample(frame));
    } catch (error) {
      samples.fail(error);
      abort();
    }
  });
  const answered = request.answer.finally(() => {
    ended = true;
  });
  const done = samples.endWith(answered);

  function abort(...indices: number[]): void {
    if (ended) return;
    const fields: Record<string, unknown> = { sample: request.id };
    if (indices.length > 0) fields.requests = indices;
    // The answer only confirms receipt; if the worker has died, `request` itself fails.
    connection.request("abort", fields).answer.catch(() => {});
  }
  const unlisten = [
    onAbort(signal, () => abort()),
    ...requests.map((each, index) => onAbort(each.signal, () => abort(index))),
  ];

  try {
    yield* samples;
  } finally {
    for (const stop of unlisten) stop();
    abort();
    await done;
  }
}

/** Calls `listener` once the signal is aborted, or now if it is already. @returns the function that stops listening */
function onAbort(signal: AbortSignal | undefined, listener: () => void): () => void {
  if (signal?.aborted) listener();
  else signal?.addEventListener("abort", listener, { once: true });
  return () => signal?.removeEventListener("abort", listener);
}

function encodeRequest({ params, ...request }: SampleRequest): Record<string, unknown> {
  return {
    prompt_logprobs: request.promptLogprobs ?? false,
    top_logprobs: request.topLogprobs ?? 0,
    tempered_logprobs: request.temperedLogprobs ?? false,
    max_tokens: params.maxTokens,
    temperature: params.temperature,
    top_p: params.topP,
    top_k: params.topK,
    min_p: params.minP,
    stop_ids: params.stopIds,
    stop_strings: params.stopStrings,
    ignore_eos: params.ignoreEos ?? false,
    seed: params.seed,
  };
}

function decodeSample({ header, arrays }: Frame): Sample {
  const { tokens, logprobs, prompt_logprobs, top_tokens, top_logprobs, token_versions } = arrays;
  const sample: Sample = {
    request: header.request as number,
    stopReason: header.stop_reason as Sample["stopReason"],
    policyVersion: header.policy_version as number,
    tokens: expectArray(tokens, Int32Array, "tokens"),
    logprobs: expectArray(logprobs, Float32Array, "logprobs"),
  };
  if (token_versions) sample.tokenVersions = expectArray(token_versions, Int32Array, "token_versions");
  if (prompt_logprobs) sample.promptLogprobs = expectArray(prompt_logprobs, Float32Array, "prompt_logprobs");
  if (top_tokens && top_logprobs) sample.topLogprobs = rows(top_tokens, top_logprobs);
  return sample;
}

function rows(tokens: FrameArray, logprobs: FrameArray): { tokens: Int32Array; logprobs: Float32Array }[] {
  const ids = expectArray(tokens, Int32Array, "top_tokens");
  const values = expectArray(logprobs, Float32Array, "top_logprobs");
  const width = tokens.shape[1] ?? 0;
  return Array.from({ length: tokens.shape[0] ?? 0 }, (_, row) => ({
    tokens: ids.slice(row * width, (row + 1) * width),
    logprobs: values.slice(row * width, (row + 1) * width),
  }));
}

function reportTokens({ arrays }: Frame, onToken: SampleOptions["onToken"]): void {
  const requests = expectArray(arrays.requests, Int32Array, "requests");
  const tokens = expectArray(arrays.tokens, Int32Array, "tokens");
  const logprobs = expectArray(arrays.logprobs, Float32Array, "logprobs");
  for (const [row, request] of requests.entries()) onToken?.(request, tokens[row] ?? -1, logprobs[row] ?? Number.NaN);
}

function expectArray<T>(array: FrameArray | undefined, kind: new (...parts: never[]) => T, name: string): T {
  if (array?.data instanceof kind) return array.data;
  throw new RunError(`the worker's sample has no ${name}`);
}
