/** LightRFT's processing of rewards and advantages before and after the estimator, part by part. */

import {
  clipSymmetric,
  noMoments,
  normalizeRewards,
  overlongPenalty,
  type RunningMoments,
  runningDeviation,
  type WhiteningOptions,
  whiteningOf,
  whitenings,
  withRewards,
} from "../../../src/algorithms/advantages.ts";
import {
  compareRewards,
  estimatorPresets,
  estimators,
  generalizedAdvantages,
  returnsToGo,
  tokenRewards,
} from "../../../src/algorithms/estimators.ts";
import { allEqual } from "../../../src/base/values.ts";
import { consecutive, type Matrix, masked, sum, trained } from "./arrays.ts";
import { type Families, family } from "./family.ts";

function whitenWhere(matrix: readonly ArrayLike<number>[], mask: Matrix, options: WhiteningOptions): Matrix {
  const { center, factor } = whiteningOf(trained(matrix, mask), options);
  return matrix.map((row) => Array.from(row, (value) => (value - center) * factor));
}

/** LightRFT includes padding in the values. */
function clip(matrix: Matrix, bound: number): { values: Matrix; fraction: number } {
  const { fraction } = clipSymmetric(matrix.flat(), bound);
  return { values: matrix.map((row) => clipSymmetric(row, bound).values), fraction };
}

/** A reward minus its KL penalty, where the mask is 1. */
function rewardRow(reward: number, kl: readonly number[], mask: readonly number[], coefficient: number): number[] {
  const own = kl.filter((_, token) => mask[token] === 1);
  const rewards = tokenRewards(own.length, reward, own, coefficient);
  let position = 0;
  return mask.map((on) => (on === 1 ? rewards[position++]! : 0));
}

interface PipelineParams {
  estimator: string;
  reward_running_norm: boolean;
  reward_running_norm_minus_mean: boolean;
  reward_clip: number;
  gamma: number;
  kl_coef: number;
}
interface Experience {
  reward: number[];
  kl: Matrix;
  mask: Matrix;
}
const pipeline = family<{ experiences: Experience[] }, PipelineParams, { advantages: Matrix[]; returns: Matrix[] }>(
  ({ inputs, params }) => {
    let moments: RunningMoments = noMoments;
    const returns = inputs.experiences.map(({ reward, kl, mask }) => {
      let rewards = reward;
      if (params.reward_running_norm) {
        ({ rewards, moments } = normalizeRewards(moments, reward, { center: params.reward_running_norm_minus_mean }));
      }
      rewards = clipSymmetric(rewards, params.reward_clip).values;
      return mask.map((row, index) =>
        Array.from(returnsToGo(rewardRow(rewards[index]!, kl[index]!, row, params.kl_coef), params.gamma)),
      );
    });
    const masks = inputs.experiences.map(({ mask }) => mask);
    const whitened =
      params.estimator === "group_norm" ? returns : acrossBatch(returns, masks, whitenings.lightrftBatch);
    return { advantages: whitened, returns, return_sum: returns.map((rows) => rows.map((row) => row[0]!)) };
  },
  ({ inputs, params, outputs }) =>
    params.gamma === 1 || inputs.experiences.length < 2
      ? undefined
      : {
          why: "gamma applies to every reply; LightRFT resets it after the first micro-batch",
          instead: { returns: { 0: outputs.returns[0] } },
        },
);

function acrossBatch(batches: Matrix[], masks: Matrix[], options: WhiteningOptions): Matrix[] {
  const { center, factor } = whiteningOf(
    batches.flatMap((batch, index) => trained(batch, masks[index]!)),
    options,
  );
  return batches.map((batch) => batch.map((row) => row.map((value) => (value - center) * factor)));
}

interface ComputeParams {
  gamma: number;
  advantages_norm: boolean;
  advantage_clip: number;
}
const compute = (kind: { discounts: boolean; whitens: boolean }) =>
  family<{ token_rewards: Matrix; mask: Matrix }, ComputeParams>(({ inputs: { token_rewards, mask }, params }) => {
    const gamma = kind.discounts ? params.gamma : 1;
    const returns = masked(token_rewards, mask).map((row) => Array.from(returnsToGo(row, gamma)));
    const whitened = kind.whitens && params.advantages_norm ? whitenWhere(returns, mask, whitenings.lightrft) : returns;
    const { values: advantages, fraction } = clip(whitened, params.advantage_clip);
    const info = params.advantage_clip > 0 ? { advantage_clip_frac: mask.map(() => fraction) } : {};
    return { advantages, returns, info };
  });

type GaeInputs = { values: Matrix; token_rewards: Matrix; mask: Matrix };
const gae = family<GaeInputs, ComputeParams & { lambd: number }>(({ inputs, params }) => {
  const { mask } = inputs;
  const [rewards, values] = [masked(inputs.token_rewards, mask), masked(inputs.values, mask)];
  const rows = rewards.map((row, index) =>
    generalizedAdvantages(row, values[index]!, { gamma: params.gamma, lambda: params.lambd }),
  );
  const raw = rows.map(({ advantages }) => Array.from(advantages));
  const whitened = params.advantages_norm ? whitenWhere(raw, mask, whitenings.lightrftGae) : raw;
  const { values: advantages } = clip(whitened, params.advantage_clip);
  // Upstream computes the clipped share after clipping.
  const { fraction } = clip(advantages, params.advantage_clip);
  return {
    advantages,
    returns: rows.map(({ returns }) => Array.from(returns)),
    clip_frac: params.advantage_clip > 0 ? mask.map(() => fraction) : fraction,
  };
});

type CpgdInputs = { reward: Matrix | number[]; mask: Matrix };
const cpgd = family<CpgdInputs, { weight_factor: string; epsilon: number }>(
  ({ inputs: { reward, mask }, params }) => {
    const scores = reward.map((row) => (Array.isArray(row) ? sum(row) : row));
    const scale = params.weight_factor === "STD_weight" ? "batch" : "none";
    const constants = { ...estimatorPresets.rllm, eps: params.epsilon };
    const [estimates] = compareRewards([{ rewards: scores }], { baseline: "batch", scale }, constants);
    const advantages = mask.map((row, index) => row.map((on) => on * estimates![index]!));
    return { advantages, returns: advantages };
  },
  ({ inputs: { reward } }) =>
    Array.isArray(reward[0])
      ? undefined
      : {
          why: "CPGD's advantage is per reply; LightRFT sums the whole batch, so every advantage is 0",
          instead: {},
        },
);

interface CrossBatch {
  experiences: { advantages: Matrix; mask: Matrix }[];
}
const crossbatch = family<CrossBatch, { estimator: string; no_advantage_std_norm: boolean }>(
  ({ inputs, params }) => {
    const advantages = inputs.experiences.map((experience) => experience.advantages);
    const masks = inputs.experiences.map(({ mask }) => mask);
    const options = { ...whitenings.lightrftBatch, scale: !params.no_advantage_std_norm };
    return { advantages: params.estimator === "group_norm" ? advantages : acrossBatch(advantages, masks, options) };
  },
  ({ inputs: { experiences }, params }) =>
    params.estimator !== "group_norm" && allEqual(experiences.flatMap((one) => trained(one.advantages, one.mask)))
      ? { why: "equal values are whitened to 0; upstream amplifies rounding errors", instead: {} }
      : undefined,
);

const runningMoments = family<{ batches: number[][] }, object, { per_batch: { std: number }[] }>(
  ({ inputs }) => {
    let moments: RunningMoments = noMoments;
    const per_batch = inputs.batches.map((batch) => {
      const own = withRewards(noMoments, batch);
      moments = withRewards(moments, batch);
      return {
        batch_mean: own.mean,
        batch_std: own.count > 1 ? runningDeviation(own) : 0,
        mean: moments.mean,
        std: runningDeviation(moments),
        var: moments.squares / moments.count,
        count: moments.count,
      };
    });
    return { per_batch };
  },
  ({ outputs }) =>
    outputs.per_batch.every(({ std }) => Number.isFinite(std))
      ? undefined
      : {
          why: "the running deviation of a single reward is 1; LightRFT's is Infinity or NaN",
          instead: { per_batch: outputs.per_batch.map((own) => (Number.isFinite(own.std) ? own : { ...own, std: 1 })) },
        },
);

type RewardInputs = { reward: number[]; kl: Matrix; mask: Matrix };
const computeReward = family<
  RewardInputs,
  { kl_coef: number; reward_clip_range: [number, number] | null },
  { token_rewards: Matrix }
>(
  ({ inputs: { reward, kl, mask }, params }) => {
    const rewards = clipSymmetric(reward, params.reward_clip_range?.[1] ?? 0).values;
    // Upstream also penalizes padding, and masks it later.
    const price = (value: number) => tokenRewards(1, 0, [value], params.kl_coef)[0]!;
    return {
      token_rewards: mask.map((row, index) => {
        const own = rewardRow(rewards[index]!, kl[index]!, row, params.kl_coef);
        return own.map((paid, token) => (row[token] === 1 ? paid : price(kl[index]![token]!)));
      }),
    };
  },
  ({ inputs: { mask, kl }, params, outputs }) =>
    mask.every((row) => row.includes(1))
      ? undefined
      : {
          why: "the reward of a reply without tokens is ignored; LightRFT puts it on padding",
          instead: {
            token_rewards: outputs.token_rewards.map((row, index) =>
              mask[index]!.includes(1) ? row : kl[index]!.map((value) => -Math.max(params.kl_coef, 0) * value),
            ),
          },
        },
);

const overlong = family<
  { rewards: number[]; lengths: number[] },
  { max_new_tokens: number; overlong_buffer_len: number; overlong_buffer_penalty_factor: number }
>(({ inputs: { rewards, lengths }, params }) => {
  const penalty = {
    maxLength: params.max_new_tokens,
    buffer: params.overlong_buffer_len,
    factor: params.overlong_buffer_penalty_factor,
  };
  return { rewards: rewards.map((reward, index) => reward + overlongPenalty(lengths[index]!, penalty)) };
});

const clipFraction = family<{ values: Matrix }, { clip_max: number }>(({ inputs, params }) => ({
  fraction: inputs.values.map(() => clip(inputs.values, params.clip_max).fraction),
}));

const dynamicSampling = family<{ rewards: number[] }, { n_samples_per_prompt: number }>(({ inputs, params }) => {
  const groups = consecutive(inputs.rewards, params.n_samples_per_prompt);
  return {
    rewards: estimators.group_norm.compare(groups, estimatorPresets.lightrft).flat(),
    // Upstream keeps groups whose rewards are equal but not 0 or 1. They have no training signal.
    row_kept: groups.flatMap(({ rewards }) => rewards.map(() => !allEqual(rewards) || ![0, 1].includes(rewards[0]!))),
  };
});

export const rewardFamilies: Families = {
  "lightrft/compute/reinforce": compute({ discounts: true, whitens: true }),
  "lightrft/compute/reinforce_baseline": compute({ discounts: false, whitens: true }),
  "lightrft/compute/group_norm": compute({ discounts: true, whitens: false }),
  "lightrft/gae": gae,
  "lightrft/cpgd": cpgd,
  "lightrft/crossbatch": crossbatch,
  "lightrft/running_moments": runningMoments,
  "lightrft/compute_reward": computeReward,
  "lightrft/overlong": overlong,
  "lightrft/pipeline": pipeline,
  "lightrft/clip_fraction": clipFraction,
  "lightrft/dynamic_sampling": dynamicSampling,
  "lightrft/buffer_normalize": {
    skip: "a second whitening whose mean counts padding; Hone whitens advantages once",
  },
};
