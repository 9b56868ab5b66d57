/** The steps of one trajectory as token sequences to train on. Masks come from sampled spans and nothing else. */
import type { Sequence, Step, Trajectory } from "./types.ts";

export interface SampledSequence extends Sequence {
  /** `[N]` log-probability under the sampler of each trained token, in order. */
  samplerLogprobs: Float32Array;
  /** A step of it has no prompt, or not one finite log-probability per token: it cannot be trained on. */
  malformed: boolean;
}

/**
 * A step whose prompt begins with exactly what the model had seen and said before continues its sequence; any other
 * step starts a new one, which is a break. Tokens of a model that is not trained (`policyVersion < 0`) are context.
 *
 * @example
 * // prompts/replies ab|c, abcd|ef, xy|z -> tokens "abcdef" (c, e, f trained) and "xyz" (z trained), 1 break
 */
export function toSequences(trajectory: Trajectory): { sequences: SampledSequence[]; breaks: number } {
  const runs: Step[][] = [];
  for (const step of trajectory.steps) {
    const run = runs.at(-1);
    if (run !== undefined && continues(step, run.at(-1)!)) run.push(step);
    else runs.push([step]);
  }
  return { sequences: runs.map(mergeSteps), breaks: Math.max(0, runs.length - 1) };
}

function continues(step: Step, previous: Step): boolean {
  const seen = previous.promptTokens.length;
  const prompt = step.promptTokens;
  return (
    prompt.length >= seen + previous.tokens.length &&
    previous.promptTokens.every((token, index) => token === prompt[index]) &&
    previous.tokens.every((token, index) => token === prompt[seen + index])
  );
}

/** Each step's prompt holds all steps before it, so the last step has the tokens and all of them have the mask. */
function mergeSteps(steps: readonly Step[]): SampledSequence {
  const { promptTokens, tokens: reply } = steps.at(-1)!;
  const tokens = new Int32Array(promptTokens.length + reply.length);
  tokens.set(promptTokens);
  tokens.set(reply, promptTokens.length);
  if (!steps.every(isSound)) {
    const trained = new Uint8Array(Math.max(0, tokens.length - 1));
    return { tokens, trained, samplerLogprobs: new Float32Array(0), malformed: true };
  }
  const trained = new Uint8Array(tokens.length - 1);
  const sampled = steps.filter(({ policyVersion }) => policyVersion >= 0);
  const samplerLogprobs = new Float32Array(sampled.reduce((total, step) => total + step.tokens.length, 0));
  let position = 0;
  for (const step of sampled) {
    const first = step.promptTokens.length - 1;
    trained.fill(1, first, first + step.tokens.length);
    samplerLogprobs.set(step.logprobs, position);
    position += step.tokens.length;
  }
  return { tokens, trained, samplerLogprobs, malformed: false };
}

function isSound({ promptTokens, tokens, logprobs, policyVersion }: Step): boolean {
  if (promptTokens.length === 0) return false;
  return policyVersion < 0 || (logprobs.length === tokens.length && logprobs.every(Number.isFinite));
}
