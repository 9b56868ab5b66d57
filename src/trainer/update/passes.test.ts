import { expect, it } from "vitest";
import type { TrainingBatch, TrajectoryGroup } from "../../trajectories/types.ts";
import { sharesOfTasks } from "./passes.ts";

/** Groups of these tasks, and a batch whose sequences belong to these groups. */
function shares(tasks: string[], groups: number[], atOnce: number) {
  const made = tasks.map((taskId, index): TrajectoryGroup => ({ id: `${index}`, taskId, role: "", members: [] }));
  const batch = { groups: Int32Array.from(groups) } as TrainingBatch;
  return sharesOfTasks(made, atOnce)(batch).map((share) => [...share]);
}

it.each([
  ["one task a pass", ["a", "b"], [0, 0, 1], 1, [[0, 1], [2]]],
  [
    "all groups of a task together",
    ["a", "a", "b", "b"],
    [0, 1, 1, 2, 3],
    1,
    [
      [0, 1, 2],
      [3, 4],
    ],
  ],
  ["several tasks a pass", ["a", "b", "c"], [0, 1, 1, 2], 2, [[0, 1, 2], [3]]],
  ["no pass for a task without sequences", ["a", "b", "c"], [0, 2], 1, [[0], [1]]],
  ["no sequences", ["a"], [], 1, []],
])("%s", (_, tasks, groups, atOnce, expected) => {
  expect(shares(tasks, groups, atOnce)).toEqual(expected);
});
