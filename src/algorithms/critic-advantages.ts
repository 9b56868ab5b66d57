/** Advantages of a batch's tokens by what a critic expected at each of them, and what the critic is to learn. */
import type { TrainingBatch } from "../trajectories/types.ts";
import { type AdvantageOptions, estimatorOf } from "./advantages.ts";
import { type GaeOptions, generalisedAdvantages } from "./estimators/returns.ts";
import { tokenRewards } from "./rewards/token-rewards.ts";

/** `[S]` 1: the sequence's advantages come from a critic, by the estimator of its role. */
export function judgedSequences(roles: readonly string[], options: AdvantageOptions): Uint8Array {
  return Uint8Array.from(roles, (role) => Number(estimatorOf(role, options).needs === "values"));
}

/**
 * Generalised advantages of the sequences that `judged` marks; the others keep theirs. A sequence's reward, which its
 * `advantages` begin with, is that of its last trained token; each token pays its own penalty. What the environment
 * says between trained tokens is passed over.
 *
 * @param rewards `[N]` of the batch as it was made: each sequence's figure at all of its tokens
 * @param values `[N]` the critic's values of the states before the tokens
 * @param penalties `[N]` the KL's price of each token, where it is taken from the reward
 * @returns `[N]` advantages, and returns `A + V` (those of sequences that are not judged are 0)
 */
export function criticAdvantages(
  { advantages: kept, offsets }: Pick<TrainingBatch, "advantages" | "offsets">,
  judged: Uint8Array,
  { rewards, values, penalties }: { rewards: Float32Array; values: Float32Array; penalties?: Float32Array },
  options: GaeOptions,
): { advantages: Float32Array; returns: Float32Array } {
  const advantages = kept.slice();
  const returns = new Float32Array(kept.length);
  judged.forEach((isJudged, sequence) => {
    const [from, to] = [offsets[sequence]!, offsets[sequence + 1]!];
    if (!isJudged || to === from) return;
    const paid = tokenRewards(to - from, rewards[to - 1]!, penalties?.subarray(from, to), 1);
    const found = generalisedAdvantages(paid, values.subarray(from, to), options);
    advantages.set(found.advantages, from);
    returns.set(found.returns, from);
  });
  return { advantages, returns };
}
