/**
 * One loss over one batch, through the worker: its outputs come up a micro-batch at a time, the loss turns them into
 * a gradient, and the gradient goes back down while the worker's graph is alive.
 */
import type { Loss, LossValue, OutputGradient } from "../../algorithms/types.ts";
import { RunError } from "../../errors.ts";
import type { Sequence, TokenOutputs } from "../../trajectories/types.ts";
import { checkLossValue } from "../check-loss-value.ts";
import type { ForwardBackwardResult } from "../engine.ts";
import type { Connection } from "./connection.ts";
import type { Frame } from "./frames.ts";
import { emptyOutputs, gather, offsetsOf, readOutputs, scatter, sequenceArrays, trainedOffsets } from "./ragged.ts";

/** What one micro-batch added. */
interface Part {
  sequences: Int32Array;
  value: Omit<LossValue, "gradient">;
}

export function outputNames(outputs: { entropy?: boolean }): string[] {
  return outputs.entropy ? ["logprobs", "entropy"] : ["logprobs"];
}

export async function forward(
  connection: Connection,
  policy: number,
  sequences: readonly Sequence[],
  outputs: { entropy?: boolean },
): Promise<TokenOutputs> {
  const fields = { policy, outputs: outputNames(outputs) };
  const frame = await connection.request("forward", fields, sequenceArrays(sequences)).answer;
  return readOutputs(frame, trainedOffsets(sequences), outputs.entropy === true);
}

/**
 * @throws NonFiniteLossError when the loss or its gradient is not finite. Gradients of the micro-batches before it
 *   stay accumulated: call `zeroGrad`.
 */
export async function forwardBackward(
  connection: Connection,
  policy: number,
  sequences: readonly Sequence[],
  loss: Loss,
): Promise<ForwardBackwardResult> {
  const offsets = trainedOffsets(sequences);
  const wantsEntropy = loss.outputs.entropy === true;
  const outputs = emptyOutputs(offsets, wantsEntropy);
  const whole = loss.coupled ? await evaluateWhole(connection, policy, sequences, loss) : null;
  let parts: Part[] = [];
  let failure: { error: unknown } | null = null;

  function pullBack(frame: Frame): OutputGradient {
    const members = readMembers(frame, sequences.length);
    const counts = Array.from(members, (sequence) => offsets[sequence + 1]! - offsets[sequence]!);
    const part = readOutputs(frame, offsetsOf(counts), wantsEntropy);
    scatter(outputs, part, members);
    if (whole !== null) return gather(whole.gradient, offsets, members);
    const { gradient, ...value } = evaluate(loss, part, members);
    // After an out-of-memory the worker sends a discarded micro-batch again in smaller parts: only those count.
    const again = new Set(members);
    parts = parts.filter((earlier) => !earlier.sequences.some((sequence) => again.has(sequence)));
    parts.push({ sequences: members, value });
    return gradient;
  }

  const fields = { policy, outputs: outputNames(loss.outputs) };
  const request = connection.request("forward_backward", fields, sequenceArrays(sequences), (frame) => {
    if (failure !== null) return;
    try {
      const { logprobs, entropy } = pullBack(frame);
      request.reply("gradient", entropy === undefined ? { logprobs } : { logprobs, entropy });
    } catch (error) {
      failure = { error };
      request.reply("cancel");
    }
  });
  try {
    await request.answer;
  } catch (error) {
    // The answer to a cancelled request is no news; the reason for cancelling is.
    failure ??= { error };
  }
  // TypeScript does not see that the event handler above assigns it.
  const failed = failure as { error: unknown } | null;
  if (failed !== null) throw failed.error;
  return { ...addUp(whole === null ? parts.map((part) => part.value) : [whole]), outputs };
}

/** A coupled loss sees all outputs before it gives any gradient: one forward more. */
async function evaluateWhole(
  connection: Connection,
  policy: number,
  sequences: readonly Sequence[],
  loss: Loss,
): Promise<LossValue> {
  const outputs = await forward(connection, policy, sequences, loss.outputs);
  return evaluate(loss, outputs, Int32Array.from(sequences.keys()));
}

function evaluate(loss: Loss, outputs: TokenOutputs, sequences: Int32Array): LossValue {
  const value = loss.evaluate(outputs, sequences);
  checkLossValue(loss.name, value, outputs);
  return value;
}

function readMembers(frame: Frame, count: number): Int32Array {
  const members = frame.arrays.sequences?.data;
  if (!(members instanceof Int32Array) || members.some((sequence) => sequence < 0 || sequence >= count)) {
    throw new RunError("the worker sent outputs of sequences that it was not given");
  }
  return members;
}

function addUp(values: readonly Omit<LossValue, "gradient">[]): Omit<LossValue, "gradient"> {
  const total: Omit<LossValue, "gradient"> = { loss: 0, metrics: {} };
  for (const { loss, metrics } of values) {
    total.loss += loss;
    for (const [name, { sum, count }] of Object.entries(metrics)) {
      const earlier = total.metrics[name] ?? { sum: 0, count: 0 };
      total.metrics[name] = { sum: earlier.sum + sum, count: earlier.count + count };
    }
  }
  return total;
}
