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

/** One step of AdamW (Loshchilov and Hutter 2019), in place; bias correction as in PyTorch. */
export function adamStep(parameters: Float64Array, gradient: Float64Array, state: AdamState, params: AdamParams): void {
  const { learningRate, beta1, beta2, eps, weightDecay } = params;
  const { first, second } = state;
  state.steps++;
  const stepSize = learningRate / (1 - beta1 ** state.steps);
  const correction = Math.sqrt(1 - beta2 ** state.steps);
  for (let index = 0; index < parameters.length; index++) {
    const slope = gradient[index]!;
    first[index] = beta1 * first[index]! + (1 - beta1) * slope;
    second[index] = beta2 * second[index]! + (1 - beta2) * slope * slope;
    const kept = parameters[index]! * (1 - learningRate * weightDecay);
    parameters[index] = kept - (stepSize * first[index]!) / (Math.sqrt(second[index]!) / correction + eps);
  }
}
