/** Advantages of a batch's tokens from the values of a critic, and the returns that the critic learns. */
import type { TrainingBatch } from "../../trajectories/types.ts";
import { type GaeOptions, generalizedAdvantages, tokenRewards } from "../estimators/returns.ts";

/**
 * Generalized advantages of the sequences in `judged`; the others keep their advantages. The reward of a sequence
 * is at its last trained token, and the penalty of each token is subtracted. Tokens of the environment are skipped.
 *
 * @param rewards `[N]` the reward of each sequence, repeated at all of its tokens
 * @param values `[N]` the critic's values of the states before the tokens
 * @param penalties `[N]` KL penalty of each token, if it is subtracted from the reward
 * @returns `[N]` advantages, and returns `A + V` (0 for sequences that are not judged)
 */
export function criticAdvantages(
  { advantages: kept, offsets }: Pick<TrainingBatch, "advantages" | "offsets">,
  judged: Int32Array,
  { rewards, values, penalties }: { rewards: Float32Array; values: Float32Array; penalties?: Float32Array | undefined },
  options: GaeOptions,
): { advantages: Float32Array; returns: Float32Array } {
  const advantages = kept.slice();
  const returns = new Float32Array(kept.length);
  for (const sequence of judged) {
    const [from, to] = [offsets[sequence], offsets[sequence + 1]];
    const own = rewards.subarray(from, to);
    const rewarded = tokenRewards(own.length, own.at(-1) ?? 0, penalties?.subarray(from, to), 1);
    const found = generalizedAdvantages(rewarded, values.subarray(from, to), options);
    advantages.set(found.advantages, from);
    returns.set(found.returns, from);
  }
  return { advantages, returns };
}
