/** What a loss is: a pure function of token outputs. No engine, no model, no I/O in this room. */
import type { TokenOutputs } from "../trajectories/types.ts";
import type { MetricSums } from "./metric-sums.ts";

/** Which outputs a loss reads besides the log-probabilities. */
export interface Outputs {
  entropy?: boolean;
  values?: boolean;
  /** By `forward` alone: it has no gradient. */
  concentration?: boolean;
}

/** `dL/doutput`, laid out as the outputs they belong to. */
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
 * subset after another (micro-batches); values, gradients and metrics of the subsets add up to the batch's.
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
  /** Needs the outputs of the whole batch before any gradient (clip-cov, kl-cov): the engine forwards once more. */
  coupled?: true;
  /** Made for engines that ask: it costs as much as an evaluation. Undefined where no such loss has this gradient. */
  hosted?(): HostedLoss | undefined;
}

/** A loss with the same gradient, under the name that an engine's own implementation has. */
export interface HostedLoss {
  name: string;
  config: Readonly<Record<string, number>>;
  /** `[N]` each, over the trained tokens of the batch. */
  inputs: Readonly<Record<string, Float32Array>>;
}
