/** The weight of a KL penalty over the steps of a run: fixed, or steered towards a target (arXiv 1909.08593). */

export interface KlControllerOptions {
  /** The first weight. */
  initial: number;
  /** The KL to keep to; `null`: the weight stays as it is. */
  target: number | null;
  /** Rollouts over which a KL far from the target changes the weight by a factor of about 1.2. */
  horizon: number;
}

/** How much of a deviation from the target counts at once. */
const maxError = 0.2;

/**
 * The weight for the next step. It is the controller's whole state: keep it with the checkpoint.
 *
 * @param kl the KL to the reference that this step found
 * @param rollouts sequences of this step
 */
export function nextKlWeight(weight: number, kl: number, rollouts: number, options: KlControllerOptions): number {
  if (options.target === null) return weight;
  const error = Math.min(Math.max(kl / options.target - 1, -maxError), maxError);
  return weight * (1 + (error * rollouts) / options.horizon);
}
