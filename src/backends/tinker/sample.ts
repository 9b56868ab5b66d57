/** Sampling through a Tinker service. */
import { AsyncQueue } from "../../concurrency/async-queue.ts";
import { Semaphore } from "../../concurrency/semaphore.ts";
import { RunError, UserError } from "../../errors.ts";
import { decodeSampleResponse } from "../../tinker-protocol/sampling.ts";
import type { Sample, SampleOptions, SampleRequest, SamplingParams } from "../engine.ts";
import { changesDistribution } from "../sampling-params.ts";
import { askTogether } from "./ask-together.ts";
import { LostResultError } from "./service-errors.ts";
import type { TinkerSession } from "./session.ts";

export type SamplingSession = ReturnType<typeof samplingSession>;

/** @param version of the weights that it samples from */
export function samplingSession(id: string, version: number) {
  let requests = 0;
  return { id, version, next: () => requests++ };
}

/** Retries of a sample whose result was lost. */
const mostLosses = 3;

/** Sequences of one request. */
const mostTogether = 64;

/** Concurrent requests; the official client's limit. */
const mostAtOnce = 400;

/** @throws UserError for parameters that the service does not have */
export async function* sample(
  session: TinkerSession,
  sampler: SamplingSession,
  requests: readonly SampleRequest[],
  eosTokenIds: readonly number[],
  { signal }: SampleOptions,
): AsyncGenerator<Sample, void, undefined> {
  const calls = callsOf(requests, session).map((asks) => ({
    asks,
    body: encode(asks, session, sampler, eosTokenIds),
  }));
  const ready = new AsyncQueue<Sample>();
  const places = new Semaphore(mostAtOnce);
  const stop = new AbortController();
  const ask = session.isHone ? askTogether(session.connection) : askAlone;

  async function askAlone(body: Record<string, unknown>, aborted: AbortSignal): Promise<unknown> {
    const accepted = await session.connection.post("asample", body);
    const cancel = () => {
      session.connection.post("cancel_future", { request_id: accepted.request_id }).catch(() => {});
    };
    if (aborted.aborted) cancel();
    aborted.addEventListener("abort", cancel, { once: true });
    try {
      return await session.connection.collect("sample", accepted, aborted);
    } finally {
      aborted.removeEventListener("abort", cancel);
    }
  }

  /** Requests a lost result again under a new number. The weights are fixed, so the same seed gives the same sample. */
  async function answered(body: Record<string, unknown>, aborted: AbortSignal): Promise<unknown> {
    for (let losses = 0; ; losses++) {
      aborted.throwIfAborted();
      try {
        return await ask(losses === 0 ? body : { ...body, seq_id: sampler.next() }, aborted);
      } catch (error) {
        if (!(error instanceof LostResultError) || losses === mostLosses) throw error;
        session.connection.counts.retries++;
      }
    }
  }

  async function call({ asks, body }: (typeof calls)[number]): Promise<void> {
    const waiting = new Set(asks);
    /** Aborted when no caller waits for any of its samples. */
    const abandoned = new AbortController();
    for (const ask of asks) {
      const { index, request } = ask;
      const ends = [stop.signal, signal, request.signal].filter((each) => each !== undefined);
      const aborted = AbortSignal.any(ends);
      const giveUp = () => {
        if (!waiting.delete(ask)) return;
        // The service does not return the tokens of an aborted sample.
        const nothing = { tokens: new Int32Array(0), logprobs: new Float32Array(0) };
        ready.push({ request: index, ...nothing, stopReason: "aborted", policyVersion: sampler.version });
        if (waiting.size === 0) abandoned.abort();
      };
      if (aborted.aborted) giveUp();
      else aborted.addEventListener("abort", giveUp, { once: true });
    }
    try {
      const result = decodeSampleResponse((await answered(body, abandoned.signal)) as Uint8Array);
      for (const [place, ask] of asks.entries()) {
        if (!waiting.delete(ask)) continue;
        const processed = !session.isHone && changesDistribution(ask.request.params);
        const own = { ...decode(ask, result, place), policyVersion: sampler.version };
        ready.push(processed ? { ...own, processed } : own);
      }
    } catch (error) {
      if (!abandoned.signal.aborted) throw error;
    }
  }

  Promise.all(calls.map((each) => places.run(() => call(each), stop.signal))).then(
    () => ready.end(),
    (error: unknown) => ready.fail(error),
  );
  try {
    yield* ready;
  } finally {
    stop.abort();
  }
}

/** A request with its index in the caller's list. */
interface Ask {
  index: number;
  request: SampleRequest;
}

/** Groups requests that differ only in their seeds: Hone's own service takes them as one. */
function callsOf(requests: readonly SampleRequest[], { isHone }: TinkerSession): Ask[][] {
  if (!isHone) return requests.map((request, index) => [{ request, index }]);
  const calls: Ask[][] = [];
  const open = new Map<string, Ask[]>();
  for (const [index, request] of requests.entries()) {
    const { prompt, params, promptLogprobs, topLogprobs, temperedLogprobs } = request;
    const rest = { ...params, seed: 0, topLogprobs, temperedLogprobs };
    const alone = promptLogprobs || params.seed < 0;
    const key = alone ? String(index) : `${prompt.join()} ${JSON.stringify(rest)}`;
    const call = open.get(key);
    if (call && call.length < mostTogether) {
      call.push({ request, index });
      continue;
    }
    const begun = [{ request, index }];
    calls.push(begun);
    open.set(key, begun);
  }
  return calls;
}

/** @param asks of one call: they differ only in their seeds */
function encode(
  asks: readonly Ask[],
  { isHone }: TinkerSession,
  sampler: SamplingSession,
  eosTokenIds: readonly number[],
): Record<string, unknown> {
  const { params, prompt, promptLogprobs, topLogprobs, temperedLogprobs } = asks[0]!.request;
  if (params.minP > 0)
    throw new UserError("Tinker does not support min_p", { hint: "Set min_p to 0; top_p and top_k are supported." });
  return {
    type: "sample",
    sampling_session_id: sampler.id,
    seq_id: sampler.next(),
    num_samples: asks.length,
    seeds: asks.length > 1 ? asks.map(({ request }) => request.params.seed) : undefined,
    prompt: { chunks: [{ type: "encoded_text", tokens: Array.from(prompt) }] },
    sampling_params: {
      max_tokens: params.maxTokens,
      seed: params.seed,
      temperature: params.temperature,
      top_k: params.topK,
      top_p: params.topP,
      stop: stopOf(params, eosTokenIds, isHone),
      ignore_eos: params.ignoreEos && isHone ? true : undefined,
    },
    prompt_logprobs: promptLogprobs ?? false,
    topk_sample_logprobs: topLogprobs ?? 0,
    raw_logprobs: isHone && !temperedLogprobs ? true : undefined,
  };
}

/** One list of tokens or texts. It includes the model's end tokens, because a service may stop only at the list. */
function stopOf({ stopIds, stopStrings, ignoreEos }: SamplingParams, eosTokenIds: readonly number[], isHone: boolean) {
  if (stopIds.length > 0 && stopStrings.length > 0) {
    throw new UserError("Tinker does not support stop tokens and stop strings in one request");
  }
  const own = [...stopIds, ...stopStrings];
  if (ignoreEos && !isHone && own.length > 0) {
    throw new UserError("Tinker does not support ignore_eos together with other stop tokens or strings");
  }
  if (ignoreEos || stopStrings.length > 0) return own;
  return own.length > 0 ? [...new Set([...stopIds, ...eosTokenIds])] : undefined;
}

function decode(
  { index, request }: Ask,
  { sequences, promptLogprobs }: ReturnType<typeof decodeSampleResponse>,
  place: number,
): Omit<Sample, "policyVersion"> {
  const sequence = sequences[place];
  if (!sequence) throw new RunError(`the Tinker service returned ${sequences.length} samples, but more were requested`);
  const { tokens, logprobs, stopReason, top } = sequence;
  const sample: Omit<Sample, "policyVersion"> = { request: index, tokens, logprobs, stopReason };
  if (request.promptLogprobs && promptLogprobs) sample.promptLogprobs = promptLogprobs;
  if (top) {
    sample.topLogprobs = Array.from({ length: top.length }, (_, row) => ({
      tokens: top.tokens.slice(row * top.k, (row + 1) * top.k),
      logprobs: top.logprobs.slice(row * top.k, (row + 1) * top.k),
    }));
  }
  return sample;
}
