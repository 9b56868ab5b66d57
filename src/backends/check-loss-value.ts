/** What an engine asks of a loss before it trusts its gradient. Shared by all engines. */
import type { LossValue } from "../algorithms/types.ts";
import { RunError } from "../errors.ts";
import type { TokenOutputs } from "../trajectories/types.ts";

/** A loss or gradient that is NaN or infinite. The step cannot be taken; a trainer may skip it and count. */
export class NonFiniteLossError extends RunError {
  override name = "NonFiniteLossError";

  constructor(message: string, options: { hint?: string; cause?: unknown } = {}) {
    super(message, { ...options, code: "non_finite_loss" });
  }
}

/**
 * @throws NonFiniteLossError when the value or its gradient is not finite
 * @throws RunError when the gradient does not fit the outputs
 */
export function checkLossValue(name: string, { loss, gradient }: LossValue, outputs: TokenOutputs): void {
  for (const key of ["logprobs", "entropy", "values"] as const) {
    const part = gradient[key];
    if (part === undefined) continue;
    const expected = outputs[key]?.length;
    if (part.length !== expected) {
      const against = expected === undefined ? "an output it did not ask for" : `${expected} ${key}`;
      throw new RunError(`the loss "${name}" gave a gradient of ${part.length} entries for ${against}`);
    }
    const bad = part.findIndex((entry) => !Number.isFinite(entry));
    if (bad >= 0) {
      throw new NonFiniteLossError(
        `the loss "${name}" has the gradient ${part[bad]} by ${key}[${bad}], where ${key} is ${outputs[key]![bad]}`,
        { hint: nonFiniteHint },
      );
    }
  }
  if (!Number.isFinite(loss)) throw new NonFiniteLossError(`the loss "${name}" is ${loss}`, { hint: nonFiniteHint });
}

const nonFiniteHint =
  "Lower training.learning_rate, or check rewards and advantages of this step for values that are not finite.";
