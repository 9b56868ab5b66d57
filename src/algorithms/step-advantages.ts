/** Advantages of single steps: the same step of each rollout of a task is compared, by the rewards of the steps. */
import type { TrajectoryGroup } from "../trajectories/types.ts";
import { type AdvantageOptions, estimateAdvantages } from "./advantages.ts";
import { returnsToGo } from "./estimators/returns.ts";

type Member = TrajectoryGroup["members"][number];

export interface StepAdvantages {
  /** `[groups][members][steps]` */
  advantages: number[][][];
  /** `groups/*`: trajectories of which some steps' rewards are unknown, and steps that only one rollout came to. */
  counts: Record<string, number>;
}

/**
 * Step `i` of the members of a group is one comparison, of the rewards of that step. A workflow that gives one reward a
 * trajectory gives it for the last step, discounted for those before. What cannot be compared has the advantage 0 and
 * is counted.
 *
 * @param options estimator and constants, as for whole trajectories
 * @param gamma discount of a step
 */
export function estimateStepAdvantages(
  groups: readonly TrajectoryGroup[],
  options: AdvantageOptions,
  gamma: number,
): StepAdvantages {
  const rewards = groups.map(({ members }) => members.map((member) => stepRewards(member, gamma)));
  const counts = { "groups/unknown_step_rewards": 0, "groups/lone_steps": 0 };
  const advantages = groups.map(({ members }) => members.map(({ trajectory }) => trajectory.steps.map(() => 0)));
  const comparisons: { group: TrajectoryGroup; index: number; step: number; members: number[] }[] = [];
  groups.forEach((group, index) => {
    counts["groups/unknown_step_rewards"] += rewards[index]!.filter((own) => own === null).length;
    const longest = Math.max(0, ...rewards[index]!.map((own) => own?.length ?? 0));
    for (let step = 0; step < longest; step++) {
      const members = [...group.members.keys()].filter((member) => (rewards[index]![member]?.length ?? 0) > step);
      if (members.length < Math.min(2, group.members.length)) counts["groups/lone_steps"]++;
      else {
        const compared = members.map((member) => ({
          ...group.members[member]!,
          reward: rewards[index]![member]![step]!,
        }));
        comparisons.push({ group: { ...group, members: compared }, index, step, members });
      }
    }
  });
  const estimated = estimateAdvantages(
    comparisons.map(({ group }) => group),
    options,
  );
  comparisons.forEach(({ index, step, members }, comparison) => {
    members.forEach((member, position) => {
      advantages[index]![member]![step] = estimated[comparison]![position]!;
    });
  });
  return { advantages, counts };
}

/** A trajectory's advantage in equal parts to its steps, so that long trajectories do not push more than short ones. */
export function shareAmongSteps(
  groups: readonly TrajectoryGroup[],
  advantages: readonly (readonly number[])[],
): number[][] {
  return groups.map(({ members }, group) =>
    members.map(({ trajectory }, member) => advantages[group]![member]! / Math.max(trajectory.steps.length, 1)),
  );
}

/** `[steps]`, or null where the rewards of some steps only are known. */
function stepRewards({ trajectory: { steps }, reward }: Member, gamma: number): readonly number[] | null {
  const given = steps.map((step) => step.reward);
  if (given.every((value) => value === null)) {
    const atEnd = given.map((_, index) => (index === steps.length - 1 ? reward : 0));
    return Array.from(returnsToGo(atEnd, gamma));
  }
  return given.every((value) => value !== null && Number.isFinite(value)) ? (given as number[]) : null;
}
