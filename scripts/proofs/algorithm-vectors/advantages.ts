/** Advantages of trajectories and of tokens. */
import { estimateAdvantages, splitEstimatorMap, whiteningOf, whitenings } from "../../../src/algorithms/advantages.ts";
import {
  type Comparison,
  compareRewards,
  type EstimatorName,
  type EstimatorOptions,
  type EstimatorPreset,
  estimatorPresets,
  estimators,
  type GaeOptions,
  generalizedAdvantages,
  optimalTokenBaseline,
  type Rewards,
  returnsToGo,
} from "../../../src/algorithms/estimators.ts";
import { allEqual } from "../../../src/base/values.ts";
import { advantageMetrics, rewardMetrics } from "../../../src/trainer/credit.ts";
import { rewardGroup } from "../../../src/trajectories/sample-episodes.fixture.ts";
import { consecutive, hasGap, type Matrix, masked, sum, trained } from "./arrays.ts";
import { type Deviation, type Families, type Family, family, type VectorCase } from "./family.ts";

interface Grouped {
  rewards_by_group: Matrix;
}
interface Rows {
  token_level_rewards: Matrix;
  response_mask: Matrix;
  index: string[];
}
interface StdParams {
  norm_adv_by_std_in_grpo?: boolean;
}

function whitenWhere(matrix: readonly ArrayLike<number>[], mask: Matrix): Matrix {
  const { center, factor } = whiteningOf(trained(matrix, mask), whitenings.verl);
  return matrix.map((row) => Array.from(row, (value) => (value - center) * factor));
}

/** Recorded from rLLM and the cookbook: rewards by group, one advantage per trajectory. */
const byGroup = (name: EstimatorName, options: EstimatorOptions) =>
  family<Grouped, StdParams>(({ inputs, params }) => ({
    advantages_by_group: estimators[name].compare(
      inputs.rewards_by_group.map((rewards) => ({ rewards })),
      { ...options, std: params.norm_adv_by_std_in_grpo ?? true },
    ),
  }));

/** The members of each group, as row numbers, in the order in which the groups first appear. */
function rowsByGroup(index: readonly string[]): number[][] {
  const groups = new Map<string, number[]>();
  index.forEach((name, row) => {
    groups.set(name, [...(groups.get(name) ?? []), row]);
  });
  return [...groups.values()];
}

/** Computes one advantage per row. Each row has the name of its group. */
function compareRows(
  index: readonly string[],
  compare: (groups: Rewards[]) => number[][],
  scores: readonly number[],
  more: { lengths?: readonly number[]; baselines?: readonly number[] } = {},
): number[] {
  const members = rowsByGroup(index);
  const pick = (values: readonly number[] | undefined, rows: readonly number[]) =>
    values && rows.map((row) => values[row]!);
  const estimates = compare(
    members.map((rows) => {
      const [lengths, baselines] = [pick(more.lengths, rows), pick(more.baselines, rows)];
      return { rewards: pick(scores, rows)!, ...(lengths ? { lengths } : {}), ...(baselines ? { baselines } : {}) };
    }),
  );
  const byRow = scores.map(() => 0);
  members.forEach((rows, group) => {
    rows.forEach((row, member) => {
      byRow[row] = estimates[group]![member]!;
    });
  });
  return byRow;
}

/** Recorded from verl and SkyRL: rewards by token; each token has the advantage of its row. */
const byRow = (name: EstimatorName, options: EstimatorOptions = estimatorPresets.verl): Family => {
  const estimatesOf = ({ inputs, params }: VectorCase<Rows & { reward_baselines?: number[] }, StdParams>) =>
    compareRows(
      inputs.index,
      (groups) => estimators[name].compare(groups, { ...options, std: params.norm_adv_by_std_in_grpo ?? true }),
      inputs.token_level_rewards.map(sum),
      {
        lengths: inputs.response_mask.map(sum),
        ...(inputs.reward_baselines ? { baselines: inputs.reward_baselines } : {}),
      },
    );
  const whitens = name === "reinforce_plus_plus_baseline";
  return family<Rows & { reward_baselines?: number[] }, StdParams>(
    (vector) => {
      const { token_level_rewards: rewards, response_mask: mask } = vector.inputs;
      const estimates = estimatesOf(vector);
      const spread = masked(
        mask.map((row, index) => row.map(() => estimates[index]!)),
        mask,
      );
      const advantages = whitens ? masked(whitenWhere(spread, mask), mask) : spread;
      if (name !== "remax") return { advantages, returns: advantages };
      // A reward before the last token counts only for the tokens up to it.
      const returns = masked(rewards, mask).map((row) => Array.from(returnsToGo(row, 1)));
      const behind = returns.map((row, index) =>
        row.map((ahead, token) => sum(rewards[index]!) * mask[index]![token]! - ahead),
      );
      return {
        advantages: spread.map((row, index) => row.map((value, token) => value - behind[index]![token]!)),
        returns,
      };
    },
    (vector) =>
      (whitens && allEqual(estimatesOf(vector)) ? equalWhitened(vector) : undefined) ?? raises(vector.outputs),
  );
};

function equalWhitened({ inputs, outputs, tol }: VectorCase<Rows>): Deviation | undefined {
  const { advantages } = outputs as { advantages: Matrix };
  if (advantages.flat().every((value) => Math.abs(value) <= tol)) return undefined;
  return {
    why: "equal returns are whitened to 0; upstream leaves about 1e-6",
    instead: { advantages: inputs.response_mask.map((row) => row.map(() => 0)) },
  };
}

/** Upstream raises an error for groups that cannot be compared; Hone gives them an advantage of 0. */
function raises(outputs: unknown): Deviation | undefined {
  const { error } = outputs as { error?: string };
  return error === undefined
    ? undefined
    : { why: "a group of one has advantage 0; upstream raises an error", instead: {} };
}

const gae = (preset: { carries: boolean }): Family =>
  family<
    { token_level_rewards: Matrix; values: Matrix; response_mask: Matrix },
    { gamma: number; lam?: number; lambd?: number }
  >(({ inputs, params }) => {
    const { token_level_rewards: rewards, values, response_mask: mask } = inputs;
    const options = { gamma: params.gamma, lambda: params.lam ?? params.lambd ?? 1 };
    const rows = rewards.map((row, index) =>
      preset.carries
        ? carriedAdvantages(row, values[index]!, mask[index]!, options)
        : generalizedAdvantages(row, values[index]!, options),
    );
    return {
      advantages: whitenWhere(
        rows.map(({ advantages }) => advantages),
        mask,
      ),
      returns: rows.map(({ returns }) => returns),
    };
  });

/** The advantages of the tokens that the policy sampled; the other tokens repeat the advantage of the next sampled token. */
function carriedAdvantages(
  rewards: readonly number[],
  values: readonly number[],
  mask: readonly number[],
  options: GaeOptions,
) {
  const own = (row: readonly number[]) => row.filter((_, token) => mask[token] === 1);
  const sampled = [...generalizedAdvantages(own(rewards), own(values), options).advantages];
  let ahead = 0;
  const advantages = mask.map(() => 0);
  for (let token = mask.length - 1; token >= 0; token--) {
    if (mask[token] === 1) ahead = sampled.pop()!;
    advantages[token] = ahead;
  }
  return { advantages, returns: advantages.map((advantage, token) => advantage + values[token]!) };
}

const verlReturns = family<Rows, { gamma: number }>(
  ({ inputs: { token_level_rewards, response_mask: mask }, params }) => {
    const returns = masked(token_level_rewards, mask).map((row) => returnsToGo(row, params.gamma));
    return { advantages: masked(whitenWhere(returns, mask), mask), returns };
  },
  (vector) => {
    const { outputs, params } = vector;
    const { response_mask: mask, token_level_rewards: rewards } = vector.inputs;
    const instead = { advantages: mask.map((row) => row.map(() => 0)) };
    if ((outputs as { error?: string }).error !== undefined) {
      return { why: "one value, or none, is whitened to 0; upstream raises an error", instead };
    }
    if (hasGap(mask)) return { why: "upstream ignores rewards after environment tokens", instead: {} };
    const returns = trained(
      masked(rewards, mask).map((row) => returnsToGo(row, params.gamma)),
      mask,
    );
    return allEqual(returns) ? equalWhitened(vector) : undefined;
  },
);

type OtbRows = Rows & { old_log_probs: Matrix; sum_pi_squared: Matrix };
const verlOptimalBaseline = family<OtbRows, object>(evaluateOptimalBaseline, ({ inputs }) =>
  hasGap(inputs.response_mask)
    ? {
        why: "tokens are compared by their position among the trained tokens; upstream counts environment tokens too",
        instead: {},
      }
    : undefined,
);

function evaluateOptimalBaseline({ inputs }: VectorCase<OtbRows>) {
  const { token_level_rewards, response_mask: mask } = inputs;
  const returns = masked(token_level_rewards, mask).map((row) => returnsToGo(row, 1));
  const advantages: Matrix = mask.map((row) => row.map(() => 0));
  for (const rows of rowsByGroup(inputs.index)) {
    const own = (values: ArrayLike<number>, row: number) =>
      Array.from(values).filter((_, token) => mask[row]![token] === 1);
    const estimated = optimalTokenBaseline(
      rows.map((row) => ({
        returns: own(returns[row]!, row),
        logprobs: own(inputs.old_log_probs[row]!, row),
        sumPiSquared: own(inputs.sum_pi_squared[row]!, row),
      })),
    );
    rows.forEach((row, member) => {
      let position = 0;
      advantages[row] = mask[row]!.map((on) => (on === 1 ? estimated[member]![position++]! : 0));
    });
  }
  return { advantages, returns };
}

/** Recorded from LightRFT: consecutive rewards form a group. */
const lightrftPreprocess = (name: EstimatorName): Family =>
  family<{ rewards: number[] }, { n_samples_per_prompt: number }, { rewards: number[] }>(
    ({ inputs, params }) => ({
      rewards: estimators[name]
        .compare(consecutive(inputs.rewards, params.n_samples_per_prompt), estimatorPresets.lightrft)
        .flat(),
    }),
    ({ outputs }) =>
      outputs.rewards.some(Number.isNaN)
        ? {
            why: "a group of one has advantage 0; upstream gives NaN",
            instead: { rewards: outputs.rewards.map(() => 0) },
          }
        : undefined,
  );

interface TrlParams {
  scale_rewards: "group" | "batch" | "none";
  reward_weights: number[];
  num_generations: number;
}
/** Recorded from TRL: weighted sums of several rewards, some of which may be missing. Rows without any reward are skipped. */
const trl = family<{ rewards_per_func: Matrix }, TrlParams>(({ inputs, params }) => {
  const scores = inputs.rewards_per_func.map((values) =>
    values.every(Number.isNaN)
      ? null
      : sum(values.map((value, index) => (Number.isNaN(value) ? 0 : value * params.reward_weights[index]!))),
  );
  const known = [...scores.keys()].filter((row) => scores[row] !== null);
  const comparison: Comparison = { baseline: "group", scale: params.scale_rewards };
  const groupOf = (row: number) => String(Math.floor(row / params.num_generations));
  const estimates = compareRows(
    known.map(groupOf),
    (groups) => compareRewards(groups, comparison, estimatorPresets.trl),
    known.map((row) => scores[row]!),
  );
  const advantages = scores.map(() => 0);
  known.forEach((row, position) => {
    advantages[row] = estimates[position]!;
  });
  const equal = (values: readonly number[]) => values.every((value) => Math.abs(value - values[0]!) < 1e-8);
  const peers = (row: number) =>
    known.filter((other) => params.scale_rewards === "batch" || groupOf(other) === groupOf(row));
  return { advantages, is_std_zero: scores.map((_, row) => equal(peers(row).map((other) => scores[other]!))) };
});

interface Collected {
  groups: { group_id: string; trajectories: { reward: number; n_steps: number }[] }[];
}
interface CollectParams extends StdParams {
  estimator: string;
  estimator_map?: Record<string, string | [string, string]>;
}
const collect = family<Collected, CollectParams>(({ inputs, params }) => {
  const groups = inputs.groups.map(({ group_id, trajectories }) =>
    rewardGroup(
      // The role that rLLM uses for an id without a role; Hone's groups always have a role.
      group_id.slice(0, -1).includes(":") ? group_id : `${group_id.replace(/:$/, "")}:all_groups`,
      trajectories.map(({ reward }) => reward),
    ),
  );
  const { byRole, lossByRole } = splitEstimatorMap(params.estimator_map ?? {});
  const advantages = estimateAdvantages(groups, {
    ...estimatorPresets.rllm,
    std: params.norm_adv_by_std_in_grpo ?? true,
    estimator: params.estimator,
    byRole,
  });
  return {
    step_advantages: inputs.groups.map(({ trajectories }, group) =>
      trajectories.map(({ n_steps }, member) => Array.from({ length: n_steps }, () => advantages[group]![member]!)),
    ),
    metrics: { ...rewardMetrics(groups), ...advantageMetrics(groups, advantages) },
    loss_fn_map: lossByRole,
  };
});

const preset = (name: EstimatorPreset): EstimatorOptions => estimatorPresets[name];
const rllmNames = ["grpo", "rloo", "reinforce", "reinforce_plus_plus_baseline", "prpo"] as const;
const verlNames = ["grpo", "grpo_passk", "reinforce_plus_plus_baseline", "rloo", "opo", "gpg", "remax"] as const;
const lightrftNames = ["group_norm", "rloo", "reinforce_baseline", "reinforce"] as const;

export const advantageFamilies: Families = {
  ...Object.fromEntries(rllmNames.map((name) => [`rllm/adv/${name}`, byGroup(name, preset("rllm"))])),
  "rllm/collect": collect,
  "tinker/adv": byGroup("dr_grpo", preset("trl")),
  ...Object.fromEntries(verlNames.map((name) => [`verl/adv/${name}`, byRow(name)])),
  "verl/adv/grpo_nostd": byRow("grpo"),
  "verl/adv/grpo_vectorized": byRow("grpo"),
  "verl/adv/rloo_vectorized": byRow("rloo", { ...estimatorPresets.verl, singleton: "zero" }),
  "verl/adv/reinforce_plus_plus": verlReturns,
  "verl/adv/reinforce_plus_plus_g1.0": verlReturns,
  "verl/adv/reinforce_plus_plus_g0.9": verlReturns,
  "verl/adv/gae": gae({ carries: true }),
  "verl/adv/optimal_token_baseline": verlOptimalBaseline,
  "skyrl/adv/gae": gae({ carries: false }),
  "skyrl/adv/compute_rloo_outcome_advantage": byRow("rloo", { ...estimatorPresets.verl, singleton: "zero" }),
  "skyrl/adv/compute_maxrl_advantage": byRow("maxrl"),
  "skyrl/adv/compute_grpo_outcome_advantage": byRow("grpo"),
  ...Object.fromEntries(lightrftNames.map((name) => [`lightrft/preprocess/${name}`, lightrftPreprocess(name)])),
  "trl/adv": trl,
};
