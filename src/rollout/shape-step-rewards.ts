/** rLLM's shaping of the rewards of single steps. Trajectories' own rewards are left alone. */
import type { Step } from "../trajectories/types.ts";

export interface RewardShaping {
  /** `r[i] += bonus * (r[i] - r[i-1])`, of the rewards as they were; 0 is off. */
  rewardBonus: number;
  /** Then `r[i] += gamma * r[i+1]` from the last step backwards; 0 is off. */
  gamma: number;
}

/** Changes the steps. Steps of unknown rewards, and with them all of their trajectory, stay as they are. */
export function shapeStepRewards(steps: readonly Step[], { rewardBonus, gamma }: RewardShaping): void {
  const raw = steps.map(({ reward }) => reward);
  if (steps.length < 2 || raw.includes(null)) return;
  const rewards = (raw as number[]).map((reward, index) =>
    index === 0 ? reward : reward + rewardBonus * (reward - (raw as number[])[index - 1]!),
  );
  if (gamma > 0) {
    for (let index = rewards.length - 2; index >= 0; index--) rewards[index]! += gamma * rewards[index + 1]!;
  }
  steps.forEach((step, index) => {
    step.reward = rewards[index]!;
  });
}
