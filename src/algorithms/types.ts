/** A loss is a pure function of token outputs. This folder does not use engines, models or I/O. */

import type { MetricSums } from "../base/values.ts";
import type { TokenOutputs } from "../trajectories/types.ts";
import type { EngineLoss } from "./loss-definition.ts";

/** The outputs that a loss reads besides the log-probabilities. */
export interface Outputs {
  entropy?: boolean;
  values?: boolean;
  /** Only `forward` returns it; it has no gradient. */
  concentration?: boolean;
}

/** `dL/doutput`, in the layout of the outputs. */
export interface OutputGradient {
  logprobs: Float32Array;
  entropy?: Float32Array;
  values?: Float32Array;
}

export interface LossValue {
  loss: number;
  gradient: OutputGradient;
  metrics: MetricSums;
}

/**
 * A loss over one batch of sequences. An engine may evaluate it on any subset of the batch's sequences, one
 * subset after another (microbatches); values, gradients and metrics of the subsets add up to the batch's.
 * Denominators that span the batch (token counts, sequence counts) are therefore fixed when the loss is built.
 */
export interface Loss {
  name: string;
  outputs: Outputs;
  /**
   * @param outputs outputs of `sequences`, in that order
   * @param sequences indices of those sequences in the batch this loss was built for
   */
  evaluate(outputs: TokenOutputs, sequences: Int32Array): LossValue;
  /** The loss needs the outputs of the whole batch (clip-cov, kl-cov), so the engine runs one more forward pass. */
  coupled?: boolean;
  /** Costs as much as an evaluation. Undefined if no hosted loss has this gradient. */
  hosted?(): HostedLoss | undefined;
}

/** A loss with the same gradient that engines may implement. */
export interface HostedLoss extends EngineLoss {
  /** `[N]` each, over the trained tokens of the batch. */
  inputs: Readonly<Record<string, Float32Array>>;
}
