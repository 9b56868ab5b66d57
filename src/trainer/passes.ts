/** One step's forward and backward in several passes, where all of it at once would be too much. */
import { addMetrics } from "../algorithms/metric-sums.ts";
import type { Loss } from "../algorithms/types.ts";
import type { AdamParams, ForwardBackwardResult, Learner, StepResult } from "../backends/engine.ts";
import { offsetsOf } from "../trajectories/batch.ts";
import type { Sequence, TrainingBatch, TrajectoryGroup } from "../trajectories/types.ts";

/** Which of a batch's sequences go into each pass, in order. */
export type Shares = (batch: TrainingBatch) => Int32Array[];

export const allAtOnce: Shares = ({ sequences }) => [Int32Array.from(sequences.keys())];

/** The sequences of so many tasks in each pass. */
export function sharesOfTasks(groups: readonly TrajectoryGroup[], tasks: number): Shares {
  // A task's groups follow each other.
  let task = -1;
  const taskOfGroup = groups.map(({ taskId }, index) => (taskId === groups[index - 1]?.taskId ? task : ++task));
  return (batch) => {
    const shares: number[][] = [];
    let seen = new Set<number>();
    batch.groups.forEach((group, sequence) => {
      const own = taskOfGroup[group]!;
      if (shares.length === 0 || (!seen.has(own) && seen.size === tasks)) {
        shares.push([]);
        seen = new Set();
      }
      seen.add(own);
      shares.at(-1)!.push(sequence);
    });
    return shares.map((share) => Int32Array.from(share));
  };
}

/** One optimizer step by the gradient of the whole loss, which adds up over passes that evaluate a part of it each. */
export async function stepInPasses(
  learner: Learner,
  batch: TrainingBatch,
  loss: Loss,
  shares: readonly Int32Array[],
  adam: AdamParams,
): Promise<{ result: ForwardBackwardResult; step: StepResult }> {
  const parts =
    shares.length <= 1 ? [{ sequences: batch.sequences, loss }] : shares.map((share) => partOf(batch, loss, share));
  const last = parts.pop()!;
  const results: ForwardBackwardResult[] = [];
  for (const part of parts) results.push(await learner.forwardBackward(part.sequences, part.loss));
  if (learner.trainStep) {
    const { result, step } = await learner.trainStep(last.sequences, last.loss, adam);
    return { result: joined([...results, result]), step };
  }
  results.push(await learner.forwardBackward(last.sequences, last.loss));
  return { result: joined(results), step: await learner.optimStep(adam) };
}

function partOf(
  { sequences, offsets }: TrainingBatch,
  loss: Loss,
  share: Int32Array,
): { sequences: Sequence[]; loss: Loss } {
  const pick = (values: Float32Array) =>
    Float32Array.from(Array.from(share).flatMap((at) => [...values.subarray(offsets[at]!, offsets[at + 1]!)]));
  const hosted = () => {
    const whole = loss.hosted?.();
    const inputs = Object.entries(whole?.inputs ?? {}).map(([name, values]) => [name, pick(values)] as const);
    return whole && { ...whole, inputs: Object.fromEntries(inputs) };
  };
  return {
    sequences: Array.from(share, (at) => sequences[at]!),
    loss: {
      ...loss,
      hosted,
      evaluate: (outputs, chosen) =>
        loss.evaluate(
          outputs,
          chosen.map((at) => share[at]!),
        ),
    },
  };
}

function joined(results: readonly ForwardBackwardResult[]): ForwardBackwardResult {
  if (results.length === 1) return results[0]!;
  const counts = results.flatMap(({ outputs: { offsets } }) =>
    [...offsets.subarray(1)].map((end, at) => end - offsets[at]!),
  );
  const logprobs = Float32Array.from(results.flatMap(({ outputs }) => [...outputs.logprobs]));
  return {
    loss: results.reduce((sum, { loss }) => sum + loss, 0),
    metrics: addMetrics(results.map(({ metrics }) => metrics)),
    outputs: { offsets: offsetsOf(counts), logprobs },
  };
}
