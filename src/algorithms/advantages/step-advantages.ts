/** Advantages of single steps: the same step of each rollout of a task is compared by its reward. */
import type { TrajectoryGroup } from "../../trajectories/types.ts";
import { returnsToGo } from "../estimators/returns.ts";
import { type AdvantageOptions, estimateAdvantages } from "./estimate-advantages.ts";

type Member = TrajectoryGroup["members"][number];

export interface StepAdvantages {
  /** `[groups][members][steps]` */
  advantages: number[][][];
  /** `groups/*`: trajectories with some unknown step rewards, and steps that only one rollout reached. */
  counts: Record<string, number>;
}

/**
 * Compares the rewards of step `i` of all members of a group. If a workflow returns one reward per trajectory, it counts
 * for the last step and, discounted, for the earlier ones. Steps that cannot be compared get advantage 0 and are counted.
 *
 * @param options estimator and constants, as for whole trajectories
 * @param gamma discount per step
 */
export function estimateStepAdvantages(
  groups: readonly TrajectoryGroup[],
  options: AdvantageOptions,
  gamma: number,
): StepAdvantages {
  const counts = { "groups/unknown_step_rewards": 0, "groups/lone_steps": 0 };
  const comparisons: { group: TrajectoryGroup; step: number; rows: number[][] }[] = [];
  const advantages = groups.map((group) => {
    const candidates = group.members.map((member) => ({
      member,
      rewards: stepRewards(member, gamma),
      row: member.trajectory.steps.map(() => 0),
    }));
    const known = candidates.flatMap(({ rewards, ...rest }) => (rewards === null ? [] : [{ rewards, ...rest }]));
    counts["groups/unknown_step_rewards"] += candidates.length - known.length;
    const longest = Math.max(0, ...known.map(({ rewards }) => rewards.length));
    for (let step = 0; step < longest; step++) {
      const members: Member[] = [];
      const rows: number[][] = [];
      for (const { member, rewards, row } of known) {
        const reward = rewards[step];
        if (reward === undefined) continue;
        members.push({ ...member, reward });
        rows.push(row);
      }
      if (members.length < Math.min(2, candidates.length)) counts["groups/lone_steps"]++;
      else comparisons.push({ group: { ...group, members }, step, rows });
    }
    return candidates.map(({ row }) => row);
  });
  const estimated = estimateAdvantages(
    comparisons.map(({ group }) => group),
    options,
  );
  for (const [index, { step, rows }] of comparisons.entries()) {
    for (const [member, row] of rows.entries()) row[step] = estimated[index]?.[member] ?? 0;
  }
  return { advantages, counts };
}

/** Divides each trajectory's advantage by its number of steps, so that long trajectories do not weigh more. */
export function shareAmongSteps(
  groups: readonly TrajectoryGroup[],
  advantages: readonly (readonly number[])[],
): number[][] {
  return groups.map(({ members }, group) =>
    members.map(({ trajectory }, member) => advantages[group]![member]! / Math.max(trajectory.steps.length, 1)),
  );
}

/** `[steps]`, or null if only some of the rewards are known. */
function stepRewards({ trajectory: { steps }, reward }: Member, gamma: number): readonly number[] | null {
  const given = steps.map((step) => step.reward);
  if (given.every((value) => value === null)) {
    const atEnd = given.map((_, index) => (index === steps.length - 1 ? reward : 0));
    return Array.from(returnsToGo(atEnd, gamma));
  }
  return given.every((value) => value !== null && Number.isFinite(value)) ? (given as number[]) : null;
}
