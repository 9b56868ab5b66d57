/** Checks of a loss's value and gradient that all engines share. */
import type { LossValue } from "../algorithms/types.ts";
import { RunError } from "../errors.ts";
import type { TokenOutputs } from "../trajectories/types.ts";

/** A loss or gradient is NaN or infinite. The trainer may skip the step and count it. */
export class NonFiniteLossError extends RunError {
  override name = "NonFiniteLossError";

  constructor(message: string, options: { hint?: string; cause?: unknown } = {}) {
    super(message, { ...options, code: "non_finite_loss" });
  }
}

/**
 * @throws NonFiniteLossError when the value or its gradient is not finite
 * @throws RunError when the gradient and the outputs differ in length
 */
export function checkLossValue(name: string, { loss, gradient }: LossValue, outputs: TokenOutputs): void {
  for (const key of ["logprobs", "entropy", "values"] as const) {
    const part = gradient[key];
    if (part === undefined) continue;
    const expected = outputs[key]?.length;
    if (part.length !== expected) {
      const against = expected === undefined ? "an output that it did not request" : `${expected} ${key}`;
      throw new RunError(`the loss "${name}" returned a gradient of ${part.length} entries for ${against}`);
    }
    const bad = part.findIndex((entry) => !Number.isFinite(entry));
    if (bad >= 0) {
      throw new NonFiniteLossError(
        `the gradient of the loss "${name}" with respect to ${key}[${bad}] is ${part[bad]} (${key}[${bad}] is ${outputs[key]![bad]})`,
        { hint: nonFiniteHint },
      );
    }
  }
  if (!Number.isFinite(loss)) throw new NonFiniteLossError(`the loss "${name}" is ${loss}`, { hint: nonFiniteHint });
}

const nonFiniteHint =
  "Lower training.learning_rate, or check rewards and advantages of this step for values that are not finite.";
