/** Training on the tokens where the policy is undecided (arXiv 2506.01939): which tokens of a sequence those are. */
import { largestThreshold } from "./largest.ts";

/** How many tokens of a sequence are kept: the share, at least one of a sequence that has any. */
export const highEntropyCount = (count: number, ratio: number): number =>
  count === 0 ? 0 : Math.max(1, Math.floor(count * ratio));

/** Positions, ascending, of the `kept` tokens of largest entropy; of equal ones the first. */
export function highEntropyPositions(entropies: Float64Array, kept: number): Int32Array {
  const positions = new Int32Array(kept);
  if (kept === 0) return positions;
  const threshold = largestThreshold(entropies, kept);
  let ties = kept - entropies.reduce((above, entropy) => above + (entropy > threshold ? 1 : 0), 0);
  let found = 0;
  for (let position = 0; found < kept && position < entropies.length; position++) {
    const entropy = entropies[position]!;
    if (entropy > threshold || (entropy === threshold && ties-- > 0)) positions[found++] = position;
  }
  return positions;
}
