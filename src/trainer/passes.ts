/** One step's forward and backward in several passes, where all of it at once would be too much. */
import type { Loss } from "../algorithms/types.ts";
import type { ForwardBackwardResult, Policy } from "../backends/engine.ts";
import { offsetsOf } from "../trajectories/batch.ts";
import type { TrainingBatch, TrajectoryGroup } from "../trajectories/types.ts";

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

/** Accumulates the gradient of the whole loss: each pass evaluates its part of it. */
export async function forwardBackwardInPasses(
  policy: Policy,
  { sequences }: TrainingBatch,
  loss: Loss,
  shares: readonly Int32Array[],
): Promise<ForwardBackwardResult> {
  if (shares.length <= 1) return policy.forwardBackward(sequences, loss);
  const { hosted: _, ...own } = loss;
  const results: ForwardBackwardResult[] = [];
  for (const share of shares) {
    const part: Loss = {
      ...own,
      evaluate: (outputs, chosen) =>
        loss.evaluate(
          outputs,
          chosen.map((at) => share[at]!),
        ),
    };
    results.push(
      await policy.forwardBackward(
        Array.from(share, (at) => sequences[at]!),
        part,
      ),
    );
  }
  return joined(results);
}

function joined(results: readonly ForwardBackwardResult[]): ForwardBackwardResult {
  const metrics: ForwardBackwardResult["metrics"] = {};
  for (const [name, { sum, count }] of results.flatMap((result) => Object.entries(result.metrics))) {
    const before = metrics[name] ?? { sum: 0, count: 0 };
    metrics[name] = { sum: before.sum + sum, count: before.count + count };
  }
  const counts = results.flatMap(({ outputs: { offsets } }) =>
    [...offsets.subarray(1)].map((end, at) => end - offsets[at]!),
  );
  const logprobs = Float32Array.from(results.flatMap(({ outputs }) => [...outputs.logprobs]));
  return {
    loss: results.reduce((sum, { loss }) => sum + loss, 0),
    metrics,
    outputs: { offsets: offsetsOf(counts), logprobs },
  };
}
