/**
 * One loss over one batch, through the worker: it sends outputs one micro-batch at a time, the loss turns them into a
 * gradient, and the gradient is sent back while the worker's graph is alive.
 */

import type { Loss, LossValue, OutputGradient, Outputs } from "../../algorithms/types.ts";
import { RunError } from "../../errors.ts";
import { addMetrics } from "../../statistics.ts";
import { countsOf, offsetsOf } from "../../trajectories/batch.ts";
import type { Sequence, TokenOutputs } from "../../trajectories/types.ts";
import { checkLossValue } from "../check-loss-value.ts";
import type { ForwardBackwardResult, TokenRows } from "../engine.ts";
import type { Connection } from "./connection.ts";
import type { Frame } from "./frames.ts";
import { emptyOutputs, gather, type OutputName, readOutputs, scatter, trainedOffsets } from "./ragged.ts";
import { type SendBatch, sendWithCall } from "./send-batch.ts";

/** The loss of one micro-batch. */
interface Part {
  sequences: Int32Array;
  value: Omit<LossValue, "gradient">;
}

/** A critic outputs only values. */
function outputNames({ entropy, values, concentration }: Outputs): OutputName[] {
  if (values) return ["values"];
  const names: OutputName[] = ["logprobs"];
  if (entropy) names.push("entropy");
  if (concentration) names.push("concentration");
  return names;
}

export async function forward(
  connection: Connection,
  policy: number,
  send: SendBatch,
  sequences: readonly Sequence[],
  outputs: Outputs,
): Promise<TokenOutputs> {
  const names = outputNames(outputs);
  const { fields, arrays } = await send(sequences);
  const frame = await connection.request("forward", { policy, outputs: names, ...fields }, arrays).answer;
  return readOutputs(frame, trainedOffsets(sequences), names);
}

/** Tokens at each output's position: `Learner.mostLikely` and `Learner.draws`. */
export async function tokensAtEach(
  connection: Connection,
  op: "most_likely" | "draws",
  fields: Record<string, number>,
  sequences: readonly Sequence[],
): Promise<TokenRows> {
  const sent = await sendWithCall(sequences);
  const { arrays } = await connection.request(op, { ...fields, ...sent.fields }, sent.arrays).answer;
  const [tokens, logprobs] = [arrays.tokens, arrays.logprobs];
  if (!(tokens?.data instanceof Int32Array) || !(logprobs?.data instanceof Float32Array)) {
    throw new RunError(`the worker's answer to ${op} has no tokens`);
  }
  return { tokens: tokens.data, logprobs: logprobs.data, count: tokens.shape[1] ?? 0 };
}

/**
 * @throws NonFiniteLossError when the loss or its gradient is not finite. Gradients of the micro-batches before it
 *   stay accumulated: call `zeroGrad`.
 */
export async function forwardBackward(
  connection: Connection,
  policy: number,
  send: SendBatch,
  sequences: readonly Sequence[],
  loss: Loss,
): Promise<ForwardBackwardResult> {
  const offsets = trainedOffsets(sequences);
  const names = outputNames(loss.outputs);
  const outputs = emptyOutputs(offsets, names);
  const whole = loss.coupled ? await evaluateWhole(connection, policy, send, sequences, loss) : null;
  let parts: Part[] = [];
  let failure: { error: unknown } | null = null;

  function pullBack(frame: Frame): OutputGradient {
    const members = readMembers(frame, sequences.length);
    const counts = countsOf(offsets);
    const part = readOutputs(frame, offsetsOf(Array.from(members, (sequence) => counts[sequence] ?? 0)), names);
    scatter(outputs, part, members);
    if (whole !== null) return gather(whole.gradient, offsets, members);
    const { gradient, ...value } = evaluate(loss, part, members);
    // After running out of memory, the worker repeats a micro-batch in smaller parts: only those count.
    const again = new Set(members);
    parts = parts.filter((earlier) => !earlier.sequences.some((sequence) => again.has(sequence)));
    parts.push({ sequences: members, value });
    return gradient;
  }

  const { fields, arrays } = await send(sequences);
  const request = connection.request("forward_backward", { policy, outputs: names, ...fields }, arrays, (frame) => {
    if (failure !== null) return;
    try {
      const gradient = pullBack(frame);
      const given = Object.entries(gradient).filter(([name]) => names.some((one) => one === name));
      request.reply("gradient", Object.fromEntries(given));
    } catch (error) {
      failure = { error };
      request.reply("cancel");
    }
  });
  try {
    await request.answer;
  } catch (error) {
    // Report the reason for cancelling, not the answer to the cancelled request.
    failure ??= { error };
  }
  // TypeScript does not see that the event handler above assigns it.
  const failed = failure as { error: unknown } | null;
  if (failed !== null) throw failed.error;
  return { ...addUp(whole === null ? parts.map((part) => part.value) : [whole]), outputs };
}

/** A coupled loss needs all outputs before any gradient, so this runs a forward first. */
async function evaluateWhole(
  connection: Connection,
  policy: number,
  send: SendBatch,
  sequences: readonly Sequence[],
  loss: Loss,
): Promise<LossValue> {
  const outputs = await forward(connection, policy, send, sequences, loss.outputs);
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
  return {
    loss: values.reduce((sum, { loss }) => sum + loss, 0),
    metrics: addMetrics(values.map(({ metrics }) => metrics)),
  };
}
