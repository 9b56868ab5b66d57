/** rLLM's shaping of step rewards. Rewards of trajectories do not change. */
import type { Step } from "../trajectories/types.ts";

export interface RewardShaping {
  /** `r[i] += bonus * (r[i] - r[i-1])`, of the rewards as they were; 0 is off. */
  rewardBonus: number;
  /** Then `r[i] += gamma * r[i+1]` from the last step backwards; 0 is off. */
  gamma: number;
}

/** Changes the steps, unless one of their rewards is unknown. */
export function shapeStepRewards(steps: readonly Step[], { rewardBonus, gamma }: RewardShaping): void {
  const raw = steps.flatMap(({ reward }) => reward ?? []);
  if (steps.length < 2 || raw.length < steps.length) return;
  const rewards = raw.map((reward, index) => reward + rewardBonus * (reward - (raw[index - 1] ?? reward)));
  let later = 0;
  for (const [index, step] of [...steps.entries()].reverse()) {
    later = (rewards[index] ?? 0) + gamma * later;
    step.reward = later;
  }
}
