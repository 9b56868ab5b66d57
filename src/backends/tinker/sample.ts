/** Sampling through a Tinker service. */
import { AsyncQueue } from "../../concurrency/async-queue.ts";
import { Semaphore } from "../../concurrency/semaphore.ts";
import { UserError } from "../../errors.ts";
import { decodeSampleResponse } from "../../tinker-protocol/sampling.ts";
import type { Sample, SampleOptions, SampleRequest } from "../engine.ts";
import { changesDistribution } from "../sampling-params.ts";
import { askTogether } from "./ask-together.ts";
import { LostResultError } from "./service-errors.ts";
import type { TinkerSession } from "./session.ts";

export interface SamplingSession {
  id: string;
  /** Of the weights that it samples from. */
  version: number;
  /** Requests count from 0. */
  next(): number;
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
  const calls = callsOf(requests, session).map((indices) => ({
    indices,
    body: encode(
      indices.map((index) => requests[index]!),
      session,
      sampler,
      eosTokenIds,
    ),
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

  async function call({ indices, body }: (typeof calls)[number]): Promise<void> {
    const waiting = new Set(indices);
    /** Aborted when no caller waits for any of its samples. */
    const abandoned = new AbortController();
    for (const index of indices) {
      const ends = [stop.signal, signal, requests[index]!.signal].filter((each) => each !== undefined);
      const aborted = AbortSignal.any(ends);
      const giveUp = () => {
        if (!waiting.delete(index)) return;
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
      indices.forEach((index, place) => {
        if (!waiting.delete(index)) return;
        ready.push(decode(index, requests[index]!, result, place, sampler.version, session.isHone));
      });
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

/** Groups requests that differ only in their seeds, by index: Hone's own service takes them as one. */
function callsOf(requests: readonly SampleRequest[], { isHone }: TinkerSession): number[][] {
  const calls: number[][] = [];
  const open = new Map<string, number[]>();
  requests.forEach(({ prompt, params, promptLogprobs, topLogprobs, temperedLogprobs }, index) => {
    const alone = !isHone || promptLogprobs || params.seed < 0;
    const rest = { ...params, seed: 0, topLogprobs, temperedLogprobs };
    const key = alone ? `${index}` : `${prompt.join()} ${JSON.stringify(rest)}`;
    const call = open.get(key);
    if (call && call.length < mostTogether) {
      call.push(index);
      return;
    }
    const begun = [index];
    calls.push(begun);
    open.set(key, begun);
  });
  return calls;
}

/** @param requests of one call: they differ only in their seeds */
function encode(
  requests: readonly SampleRequest[],
  { isHone }: TinkerSession,
  sampler: SamplingSession,
  eosTokenIds: readonly number[],
): Record<string, unknown> {
  const request = requests[0]!;
  const { params, prompt, promptLogprobs, topLogprobs } = request;
  if (params.minP > 0)
    throw new UserError("Tinker has no min_p", { hint: "Leave min_p at 0; top_p and top_k are there." });
  return {
    type: "sample",
    sampling_session_id: sampler.id,
    seq_id: sampler.next(),
    num_samples: requests.length,
    ...(requests.length > 1 ? { seeds: requests.map((each) => each.params.seed) } : {}),
    prompt: { chunks: [{ type: "encoded_text", tokens: Array.from(prompt) }] },
    sampling_params: {
      max_tokens: params.maxTokens,
      seed: params.seed,
      temperature: params.temperature,
      top_k: params.topK,
      top_p: params.topP,
      ...stopOf(request, eosTokenIds, isHone),
    },
    prompt_logprobs: promptLogprobs ?? false,
    topk_sample_logprobs: topLogprobs ?? 0,
    ...(isHone && !request.temperedLogprobs ? { raw_logprobs: true } : {}),
  };
}

/** One list of tokens or texts. It includes the model's end tokens, because a service may stop only at the list. */
function stopOf(
  { params }: SampleRequest,
  eosTokenIds: readonly number[],
  isHone: boolean,
): { stop?: readonly (number | string)[]; ignore_eos?: boolean } {
  const { stopIds, stopStrings, ignoreEos } = params;
  if (stopIds.length > 0 && stopStrings.length > 0) {
    throw new UserError("Tinker stops at tokens or at texts, not at both in one request");
  }
  if (ignoreEos && isHone) return { stop: [...stopIds, ...stopStrings], ignore_eos: true };
  if (ignoreEos && stopIds.length + stopStrings.length > 0) {
    throw new UserError("Tinker cannot ignore the model's own end and stop at something else");
  }
  if (ignoreEos) return { stop: [] };
  if (stopStrings.length > 0) return { stop: stopStrings };
  return stopIds.length > 0 ? { stop: [...new Set([...stopIds, ...eosTokenIds])] } : {};
}

function decode(
  index: number,
  request: SampleRequest,
  { sequences, promptLogprobs }: ReturnType<typeof decodeSampleResponse>,
  place: number,
  policyVersion: number,
  isHone: boolean,
): Sample {
  const processed = !isHone && changesDistribution(request.params);
  const { tokens, logprobs, stopReason, top } = sequences[place]!;
  const rows =
    top &&
    Array.from({ length: top.length }, (_, row) => ({
      tokens: top.tokens.slice(row * top.k, (row + 1) * top.k),
      logprobs: top.logprobs.slice(row * top.k, (row + 1) * top.k),
    }));
  return {
    ...{ request: index, tokens, logprobs, stopReason, policyVersion },
    ...(processed ? { processed } : {}),
    ...(request.promptLogprobs && promptLogprobs ? { promptLogprobs } : {}),
    ...(rows ? { topLogprobs: rows } : {}),
  };
}
