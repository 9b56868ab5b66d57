/** Sampling through a Tinker service: a request each, answered as they end. */
import { UserError } from "../../errors.ts";
import type { Sample, SampleOptions, SampleRequest } from "../engine.ts";
import { LostResultError } from "./connection.ts";
import type { TinkerSession } from "./session.ts";
import { decodeSampleResponse } from "./wire/sampling.ts";

export interface Sampler {
  /** The sampling session. */
  id: string;
  /** Of the weights that it samples from. */
  version: number;
  /** Requests count from 0. */
  next(): number;
}

/** As often is one sample asked for again. */
const mostLosses = 3;

/** Requests that are under way at the same time, as the service's own client. */
const mostAtOnce = 400;

/** @throws UserError for parameters that the service does not have */
export async function* sample(
  session: TinkerSession,
  sampler: Sampler,
  requests: readonly SampleRequest[],
  eosTokenIds: readonly number[],
  { signal }: SampleOptions,
): AsyncGenerator<Sample, void, undefined> {
  const bodies = requests.map((request) => encode(request, session, sampler, eosTokenIds));
  const ready: Sample[] = [];
  let failure: { error: unknown } | undefined;
  let wake = (): void => {};
  let [next, running] = [0, 0];
  const stop = new AbortController();

  /** A lost result is asked for again, as a request of its own: frozen weights draw the same by the same seed. */
  async function answered(index: number, aborted: AbortSignal): Promise<unknown> {
    for (let losses = 0; ; losses++) {
      aborted.throwIfAborted();
      const body = losses === 0 ? bodies[index]! : { ...bodies[index]!, seq_id: sampler.next() };
      const accepted = await session.connection.post("asample", body);
      const cancel = () => {
        session.connection.post("cancel_future", { request_id: accepted.request_id }).catch(() => {});
      };
      if (aborted.aborted) cancel();
      aborted.addEventListener("abort", cancel, { once: true });
      try {
        return await session.connection.collect("sample", accepted, aborted);
      } catch (error) {
        if (!(error instanceof LostResultError) || losses === mostLosses) throw error;
        session.connection.counts.retries++;
      } finally {
        aborted.removeEventListener("abort", cancel);
      }
    }
  }

  async function one(index: number): Promise<void> {
    const request = requests[index]!;
    const ends = [stop.signal, signal, request.signal].filter((each) => each !== undefined);
    const aborted = AbortSignal.any(ends);
    try {
      const result = await answered(index, aborted);
      ready.push(decode(index, request, result as Uint8Array, sampler.version, session.isHone));
    } catch (error) {
      if (!aborted.aborted) throw error;
      // What it had sampled is not told: an aborted sample has no tokens here.
      const nothing = { tokens: new Int32Array(0), logprobs: new Float32Array(0) };
      ready.push({ request: index, ...nothing, stopReason: "aborted", policyVersion: sampler.version });
    }
  }
  function start(): void {
    while (next < requests.length && running < mostAtOnce && !failure) {
      running++;
      one(next++)
        .catch((error: unknown) => {
          failure ??= { error };
        })
        .finally(() => {
          running--;
          start();
          wake();
        });
    }
  }

  start();
  try {
    while (true) {
      const done = ready.shift();
      if (done) yield done;
      else if (failure) throw failure.error;
      else if (running === 0) return;
      else {
        await new Promise<void>((resolve) => {
          wake = resolve;
        });
      }
    }
  } finally {
    stop.abort();
  }
}

function encode(
  request: SampleRequest,
  { isHone }: TinkerSession,
  sampler: Sampler,
  eosTokenIds: readonly number[],
): Record<string, unknown> {
  const { params, prompt, promptLogprobs, topLogprobs } = request;
  if (params.minP > 0)
    throw new UserError("Tinker has no min_p", { hint: "Leave min_p at 0; top_p and top_k are there." });
  return {
    type: "sample",
    sampling_session_id: sampler.id,
    seq_id: sampler.next(),
    num_samples: 1,
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

/** One list, of tokens or of texts. That a list of tokens leaves the model's own end in force is not promised, so it is named. */
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
  bytes: Uint8Array,
  policyVersion: number,
  isHone: boolean,
): Sample {
  const { temperature, topP, topK } = request.params;
  const processed = !isHone && (temperature !== 1 || topP < 1 || topK > 0);
  const { sequences, promptLogprobs } = decodeSampleResponse(bytes);
  const { tokens, logprobs, stopReason, top } = sequences[0]!;
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
