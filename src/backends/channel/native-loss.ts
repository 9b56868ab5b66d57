/** Losses that a worker computes itself, without sending outputs and waiting for their gradient. */
import type { Loss } from "../../algorithms/types.ts";
import type { Sequence } from "../../trajectories/types.ts";
import { checkLossValue } from "../check-loss-value.ts";
import type { ForwardBackwardResult } from "../engine.ts";
import type { Connection } from "./connection.ts";
import { readOutputs, trainedOffsets } from "./ragged.ts";
import type { SendBatch } from "./send-batch.ts";

/** The worker's name for a loss, its settings there, and `[N]` inputs over the trained tokens. */
export interface NativeLoss {
  name: string;
  settings: Readonly<Record<string, unknown>>;
  inputs: Readonly<Record<string, Float32Array>>;
}

/**
 * The worker's loss with the same gradient; undefined if it has none.
 * @param offsets of each sequence's trained tokens
 */
export type FindNativeLoss = (loss: Loss, offsets: Int32Array) => NativeLoss | undefined;

/** @throws NonFiniteLossError like `forwardBackward`; the gradient stays accumulated: call `zeroGrad` */
export async function nativeForwardBackward(
  connection: Connection,
  policy: number,
  send: SendBatch,
  sequences: readonly Sequence[],
  loss: Loss,
  { name, settings, inputs }: NativeLoss,
): Promise<ForwardBackwardResult> {
  const sent = await send(sequences);
  const fields = { policy, outputs: ["logprobs"], loss: { name, settings }, ...sent.fields };
  const frame = await connection.request("forward_backward", fields, { ...sent.arrays, ...inputs }).answer;
  const outputs = readOutputs(frame, trainedOffsets(sequences), ["logprobs"]);
  const value = loss.evaluate(outputs, Int32Array.from(sequences.keys()));
  checkLossValue(loss.name, value, outputs);
  return { loss: value.loss, metrics: value.metrics, outputs };
}
