/** The weight of a KL to the reference policy over the steps of a run: fixed, or adapted to a target KL (arXiv 1909.08593). */
import type { KlTerm } from "./kl-estimators.ts";

/** The KL of a run; `weight` is the first one. */
export interface KlOptions extends KlTerm {
  in: "loss" | "reward";
  /** Target KL (nats); `null` keeps the weight fixed. */
  target: number | null;
  /** Rollouts over which a KL far from the target changes the weight by a factor of about 1.2. */
  horizon: number;
}

/** Bound on the relative error of one step. */
const maxError = 0.2;

/**
 * The weight for the next step. It is the controller's whole state, so checkpoints save it.
 *
 * @param kl mean KL to the reference of this step (nats)
 * @param rollouts number of sequences of this step
 */
export function nextKlWeight(
  weight: number,
  kl: number,
  rollouts: number,
  { target, horizon }: Pick<KlOptions, "target" | "horizon">,
): number {
  if (target === null) return weight;
  const error = Math.min(Math.max(kl / target - 1, -maxError), maxError);
  return weight * (1 + (error * rollouts) / horizon);
}
