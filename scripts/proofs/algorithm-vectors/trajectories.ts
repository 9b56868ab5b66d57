/** Grouping, filters, and advantages of steps; and skipped families that are not algorithms. */
import { shareAmongSteps } from "../../../src/algorithms/advantages.ts";
import { mean } from "../../../src/base/values.ts";
import { shapeStepRewards } from "../../../src/rollout/outcome.ts";
import {
  type CompactFiltering,
  dropSmallGroups,
  gather,
  groupTrajectories,
  maskedReasons,
  nothingGathered,
} from "../../../src/trajectories/groups.ts";
import {
  rewardGroup,
  sampleEpisode,
  sampleStep,
  sampleTrajectory,
} from "../../../src/trajectories/sample-episodes.fixture.ts";
import type { TerminationReason, TrajectoryGroup } from "../../../src/trajectories/types.ts";
import { type Matrix, masked } from "./arrays.ts";
import { type Families, family, skipped } from "./family.ts";

interface TransformInputs {
  episodes: {
    id: string;
    termination_reason: TerminationReason | null;
    trajectories: { name: string; reward: number | null; step_rewards: number[] }[];
  }[];
}
interface TransformParams {
  compact_filtering: CompactFiltering;
  impute_missing_names: boolean;
  default_traj_name: string;
}
const transform = family<TransformInputs, TransformParams>(({ inputs, params }) => {
  const episodes = inputs.episodes.map(({ id, termination_reason, trajectories }) =>
    sampleEpisode(id, {
      termination: termination_reason ?? "unknown",
      trajectories: trajectories.map(({ name, reward, step_rewards }, position) =>
        sampleTrajectory({
          // Hone names every trajectory. Recorded trajectories without a name are distinguished by their position.
          name: params.impute_missing_names && name === params.default_traj_name ? `${name}_${position}` : name,
          reward,
          steps: step_rewards.map((own) => sampleStep([1], [2], { reward: own })),
        }),
      ),
    }),
  );
  const { groups, counts } = groupTrajectories(episodes, { masked: maskedReasons(params.compact_filtering) });
  return {
    groups: groups.map(({ id, role, members }) => ({
      group_id: id,
      group_role: role,
      rewards: members.map(({ reward }) => reward),
      rollout_idx: members.map(({ episode }) => String(episode.rollout)),
    })),
    metrics: counts,
  };
});

interface Batches {
  batches: { id: string; is_correct: boolean }[][];
}
interface RejectionParams {
  mode: "none" | "episode";
  min_partial_solve_tasks: number;
  min_trajs_per_group: number;
}
/** Recorded with one accumulator over all batches; upstream's trainer would start a new one for each batch. */
const rejection = family<Batches, RejectionParams>(({ inputs, params }) => {
  let gathered = nothingGathered;
  const per_batch = inputs.batches.map((batch) => {
    const episodes = batch.map(({ id, is_correct }) =>
      sampleEpisode(id, { correct: is_correct, trajectories: [sampleTrajectory({ name: "a" })] }),
    );
    const { groups, counts } = dropSmallGroups(groupTrajectories(episodes).groups, params.min_trajs_per_group);
    gathered = gather(gathered, { epoch: 0, episodes, groups, counts });
    const enough = gathered.solved.partial >= params.min_partial_solve_tasks;
    const released = params.mode === "none" ? { episodes, groups } : enough ? gathered : { episodes: [], groups: [] };
    const { none, partial, all } = gathered.solved;
    const tasks = Math.max(none + partial + all, 1);
    return {
      group_ids: released.groups.map(({ id }) => id),
      episode_ids: released.episodes.map(({ id }) => id),
      episodes_with_trajs: [...new Set(released.groups.flatMap(idsOf))],
      metrics: {
        ...gathered.counts,
        "batch/num_tasks": tasks,
        "batch/solve_none": none / tasks,
        "batch/solve_partial": partial / tasks,
        "batch/solve_all": all / tasks,
      },
    };
  });
  return { per_batch };
});
const idsOf = ({ members }: TrajectoryGroup) => members.map(({ episode }) => episode.id);

interface Broadcast {
  last_adv: Matrix;
  last_mask: Matrix;
  last_traj: string[];
  last_ep: string[];
  last_step_nums: number[];
  other_mask: Matrix;
  other_traj: string[];
  other_ep: string[];
}
/** Upstream has one advantage per token of a trajectory's last step. The other steps get their mean. */
const broadcast = family<Broadcast, { normalize_by_steps: boolean }>(({ inputs, params }) => {
  const scalars = inputs.last_adv.map((row, index) => {
    const advantage = mean(row.filter((_, token) => inputs.last_mask[index]![token] === 1));
    if (!params.normalize_by_steps) return advantage;
    const group = rewardGroup("a:solver", [0]);
    group.members[0]!.trajectory.steps = Array.from({ length: inputs.last_step_nums[index]! }, () =>
      sampleStep([1], [2]),
    );
    return shareAmongSteps([group], [[advantage]])[0]![0]!;
  });
  const spread = (mask: Matrix, owner: (row: number) => number) =>
    masked(
      mask.map((row, index) => row.map(() => scalars[owner(index)]!)),
      mask,
    );
  const lastOf = (row: number) =>
    inputs.last_traj.findIndex(
      (name, index) => name === inputs.other_traj[row] && inputs.last_ep[index] === inputs.other_ep[row],
    );
  return {
    last_advantages: params.normalize_by_steps ? spread(inputs.last_mask, (row) => row) : inputs.last_adv,
    other_advantages: spread(inputs.other_mask, lastOf),
  };
});

export const trajectoryFamilies: Families = {
  "rllm/transform": transform,
  "rllm/compact_filtering": family<{ reasons: (TerminationReason | null)[] }, CompactFiltering>(
    ({ inputs, params }) => {
      const reasons = maskedReasons(params);
      return { mask: inputs.reasons.map((reason) => reasons.has(reason ?? "unknown")) };
    },
  ),
  "rllm/rejection": rejection,
  "rllm/stepwise_broadcast": broadcast,
  "rllm/adjust_step_rewards": family<{ step_rewards: number[] }, { gamma: number; reward_bonus_coeff: number }>(
    ({ inputs, params }) => {
      const steps = inputs.step_rewards.map((reward) => sampleStep([1], [2], { reward }));
      shapeStepRewards(steps, { gamma: params.gamma, rewardBonus: params.reward_bonus_coeff });
      return { step_rewards: steps.map(({ reward }) => reward) };
    },
  ),
  "rllm/sync_config": skipped(
    "keys of another trainer, and upstream's half of clip_ratio: configuration, not an algorithm",
  ),
  "rllm/verl_update_count": skipped("how another trainer pads rows to its processes; Hone does not pad"),
  "lightrft/derived": skipped(
    "how another trainer computes its number of steps from flags: configuration, not an algorithm",
  ),
};
