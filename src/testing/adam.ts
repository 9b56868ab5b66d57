/** The optimizer of the tabular engine. */
import type { AdamParams } from "../backends/engine.ts";

export interface AdamState {
  steps: number;
  /** Running means of the gradient and of its square, one for each parameter. */
  first: Float64Array;
  second: Float64Array;
}

export const freshAdam = (count: number): AdamState => ({
  steps: 0,
  first: new Float64Array(count),
  second: new Float64Array(count),
});

/** A step that clips the gradient's norm and drops a gradient that is not finite. */
export function clippedAdamStep(
  parameters: Float64Array,
  gradient: Float64Array,
  state: AdamState,
  params: AdamParams,
): { gradNorm: number; applied: boolean } {
  // Single precision, as in other engines, so that the same gradients overflow.
  const gradNorm = Math.fround(Math.sqrt(gradient.reduce((sum, slope) => sum + slope * slope, 0)));
  if (!Number.isFinite(gradNorm)) return { gradNorm, applied: false };
  const scale = params.maxGradNorm > 0 ? Math.min(1, params.maxGradNorm / gradNorm) : 1;
  adamStep(
    parameters,
    gradient.map((slope) => slope * scale),
    state,
    params,
  );
  return { gradNorm, applied: true };
}

/** One step of AdamW (Loshchilov and Hutter 2019), in place; bias correction as in PyTorch. */
function adamStep(parameters: Float64Array, gradient: Float64Array, state: AdamState, params: AdamParams): void {
  const { learningRate, beta1, beta2, eps, weightDecay } = params;
  const { first, second } = state;
  state.steps++;
  const stepSize = learningRate / (1 - beta1 ** state.steps);
  const correction = Math.sqrt(1 - beta2 ** state.steps);
  for (const [index, slope] of gradient.entries()) {
    const mean = beta1 * first[index]! + (1 - beta1) * slope;
    const square = beta2 * second[index]! + (1 - beta2) * slope * slope;
    first[index] = mean;
    second[index] = square;
    const kept = parameters[index]! * (1 - learningRate * weightDecay);
    parameters[index] = kept - (stepSize * mean) / (Math.sqrt(square) / correction + eps);
  }
}
