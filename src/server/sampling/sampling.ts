/** Answers requests to sample: sequences with log-probabilities, and what was asked about the prompt. */
import type { Learner, Policy, Sample } from "../../backends/engine.ts";
import { RunError, UserError } from "../../errors.ts";
import { emptyLogprob, encodeSampleResponse, type TopLogprobs } from "../../tinker-protocol/sampling.ts";
import { encodeSparse, encodeTensor, type TensorMessage } from "../../tinker-protocol/tensors.ts";
import type { Sequence } from "../../trajectories/types.ts";
import type { ModelInput } from "../model-input.ts";
import type { BaseModel } from "../models/base-models.ts";
import type { FutureResult } from "../queue/futures.ts";
import type { SampleCall, TargetCells } from "./sample-request.ts";

/**
 * @param owner the client whose turn on the engine this uses
 * @throws UserError when the signal ended it
 */
export async function sample(
  { sampler, learner }: Policy,
  { scheduler, gatherer }: Pick<BaseModel, "scheduler" | "gatherer">,
  owner: string,
  call: SampleCall,
  signal: AbortSignal,
): Promise<FutureResult & { kind: "protobuf"; sampledTokens: number }> {
  const { input, targets, draws, topPrompt, topSample, promptLogprobs } = call;
  const { length } = input.tokens;
  const firstReported = length - (promptLogprobs ?? length - 1);
  const scores = <T>(job: () => Promise<T>) => scheduler.train(`scores of ${owner}`, job);
  const top = topPrompt > 0 ? await scores(() => topOfPrompt(learner, input, topPrompt, firstReported)) : undefined;
  const scored = targets ? await scores(() => scoreTargets(learner, input, targets)) : undefined;

  const drawn = draws ? await scores(() => drawAtEach(learner, input, draws)) : undefined;

  const samples = await scheduler.sample(owner, call.requests.length, async () => {
    if (signal.aborted) throw new UserError("the request was cancelled");
    return gatherer.sample(sampler, owner, call.requests, signal);
  });
  if (signal.aborted || samples.some(({ stopReason }) => stopReason === "aborted")) {
    throw new UserError("the request was cancelled");
  }
  const body = encodeSampleResponse({
    sequences: samples.map(({ tokens, logprobs, stopReason, topLogprobs }) => ({
      stopReason: stopReason === "stop" ? "stop" : "length",
      tokens,
      logprobs,
      top: topSample > 0 && topLogprobs ? rowsOf(topLogprobs, topSample) : undefined,
    })),
    promptLogprobs: promptLogprobs === null ? undefined : reportedOf(samples[0], firstReported),
    topPromptLogprobs: top,
    targetPromptLogprobs: scored,
    promptAltTokens: drawn,
  });
  return { kind: "protobuf", body, sampledTokens: samples.reduce((sum, { tokens }) => sum + tokens.length, 0) };
}

function reportedOf(first: Sample | undefined, firstReported: number): Float32Array {
  if (!first?.promptLogprobs) throw new RunError("the engine did not return the log-probabilities of the prompt");
  return first.promptLogprobs.map((logprob, position) => (position < firstReported ? Number.NaN : logprob));
}

/** Rows of fixed width; short rows are padded with empty cells. */
function rowsOf(rows: readonly { tokens: Int32Array; logprobs: Float32Array }[], k: number): TopLogprobs {
  const tokens = new Int32Array(rows.length * k);
  const logprobs = new Float32Array(rows.length * k).fill(emptyLogprob);
  rows.forEach((row, index) => {
    tokens.set(row.tokens, index * k);
    logprobs.set(row.logprobs, index * k);
  });
  return { tokens, logprobs, k, length: rows.length };
}

/** `[P, k]`: position 0 and those before `firstReported` are empty. */
async function topOfPrompt(
  learner: Learner,
  input: ModelInput,
  k: number,
  firstReported: number,
): Promise<TopLogprobs> {
  const { length } = input.tokens;
  const tokens = new Int32Array(length * k);
  const logprobs = new Float32Array(length * k).fill(emptyLogprob);
  const from = Math.max(1, firstReported);
  if (from < length) {
    const trained = new Uint8Array(length - 1).fill(1, from - 1);
    const found = await learner.mostLikely!([{ ...input, trained }], k);
    tokens.set(found.tokens, from * k);
    logprobs.set(found.logprobs, from * k);
  }
  return { tokens, logprobs, k, length };
}

async function drawAtEach(learner: Learner, input: ModelInput, draws: NonNullable<SampleCall["draws"]>) {
  const places = input.tokens.length - 1;
  const sequence: Sequence = { ...input, trained: new Uint8Array(places).fill(1) };
  const shape = [places, draws.count];
  const found = places > 0 ? await learner.draws!([sequence], draws) : { tokens: [], logprobs: [] };
  return {
    tokens: encodeTensor({ dtype: "int64", values: Float64Array.from(found.tokens), shape }),
    logprobs: encodeTensor({ dtype: "float32", values: Float32Array.from(found.logprobs), shape }),
  };
}

async function scoreTargets(
  learner: Learner,
  input: ModelInput,
  { places, tokens, shape, sparse }: TargetCells,
): Promise<TensorMessage> {
  const trained = new Uint8Array(input.tokens.length - 1);
  for (const [index, place] of places.entries()) trained[place]! += Number(tokens[index] !== -1);
  const targets = tokens.filter((token) => token !== -1);
  const { logprobs } = await learner.forward([{ ...input, trained, targets }], {});
  let next = 0;
  const values = Float32Array.from(tokens, (token) => (token === -1 ? 0 : (logprobs[next++] ?? Number.NaN)));
  if (sparse) return encodeSparse(values, sparse.rows, sparse.columns, shape);
  return encodeTensor({ dtype: "float32", values, shape });
}
