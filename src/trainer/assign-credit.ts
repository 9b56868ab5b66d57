/** Groups of rewards into what each trajectory, or each of its steps, counts for. */
import { estimateAdvantages } from "../algorithms/advantages.ts";
import { clipSymmetric } from "../algorithms/rewards/clip.ts";
import { overlongPenalty } from "../algorithms/rewards/overlong-penalty.ts";
import { noMoments, normalizeRewards, runningDeviation } from "../algorithms/rewards/running-moments.ts";
import { estimateStepAdvantages, shareAmongSteps } from "../algorithms/step-advantages.ts";
import { UserError } from "../errors.ts";
import { mean } from "../statistics.ts";
import { dropUniformGroups } from "../trajectories/gather.ts";
import type { MemberAdvantage, StepAdvantage } from "../trajectories/to-batch.ts";
import type { Trajectory, TrajectoryGroup } from "../trajectories/types.ts";
import { advantageOptions } from "./credit-options.ts";
import type { Run } from "./run.ts";

export interface Credit {
  /** The groups that are trained on. */
  groups: readonly TrajectoryGroup[];
  /** `[groups][members]` */
  advantages: readonly (readonly MemberAdvantage[])[];
  metrics: Record<string, number>;
}

/**
 * In this order, each where asked for: the overlong penalty, the estimator, the running normalisation and the bound of
 * its figures (`rllm.reward`), and the filter of groups without any advantage.
 */
export function assignCredit(run: Run, groups: readonly TrajectoryGroup[]): Credit {
  const { config } = run;
  const { use_precomputed_advantage: precomputed } = config.rllm.algorithm;
  const penalised = penaliseOverlong(run, groups);
  const estimated = precomputed ? ownAdvantages(groups) : estimate(run, penalised.groups);
  const metrics = { ...penalised.metrics, ...estimated.metrics };
  if (!config.rllm.rejection_sample.filter_uniform_groups) return { groups, advantages: estimated.advantages, metrics };
  const kept = dropUniformGroups(groups, estimated.advantages, isZero);
  return { ...kept, metrics: { ...metrics, ...kept.counts } };
}

type Estimated = Pick<Credit, "advantages" | "metrics">;

function estimate(run: Run, groups: readonly TrajectoryGroup[]): Estimated {
  const { enable, mode, normalize_by_steps } = run.config.rllm.stepwise_advantage;
  const options = advantageOptions(run.config, run.experiment.estimators);
  if (enable && mode === "per_step") {
    const { gamma } = run.config.rllm.workflow.workflow_args;
    const { advantages, counts } = estimateStepAdvantages(groups, options, gamma);
    return { advantages, metrics: counts };
  }
  const { figures, metrics } = normalise(run, estimateAdvantages(groups, options));
  return { advantages: enable && normalize_by_steps ? shareAmongSteps(groups, figures) : figures, metrics };
}

/** What the workflow says itself; a step of which it says nothing is not trained on, and counted so. */
function ownAdvantages(groups: readonly TrajectoryGroup[]): Estimated {
  const trajectories = groups.flatMap(({ members }) => members.map(({ trajectory }) => trajectory));
  const given = trajectories.some(({ steps }) => steps.some(({ advantage }) => advantage !== undefined));
  if (trajectories.length > 0 && !given) {
    throw new UserError(
      "rllm.algorithm.use_precomputed_advantage is set, but no rollout of this step gave advantages",
      {
        hint: "return `advantages` from the workflow, e.g. { reward: 1, advantages: { agent: [0.5] } }",
      },
    );
  }
  const own = ({ steps }: Trajectory) => steps.map(({ advantage = Number.NaN }): StepAdvantage => advantage);
  return { advantages: groups.map(({ members }) => members.map(({ trajectory }) => own(trajectory))), metrics: {} };
}

function penaliseOverlong({ config }: Run, groups: readonly TrajectoryGroup[]): Omit<Credit, "advantages"> {
  const { enable, buffer_len: buffer, penalty_factor: factor } = config.rllm.reward.overlong;
  if (!enable) return { groups, metrics: {} };
  const limits = { maxLength: config.data.max_response_length, buffer, factor };
  const longest = ({ steps }: Trajectory) => Math.max(0, ...steps.map(({ tokens }) => tokens.length));
  const penalties = groups.map(({ members }) =>
    members.map(({ trajectory }) => overlongPenalty(longest(trajectory), limits)),
  );
  const all = penalties.flat();
  return {
    groups: groups.map((group, index) => ({
      ...group,
      members: group.members.map((one, member) => ({ ...one, reward: one.reward + penalties[index]![member]! })),
    })),
    metrics: all.length === 0 ? {} : { "reward/overlong_penalty": mean(all) },
  };
}

/** LightRFT's order: what the estimator made of the rewards is what is normalised and bounded. */
function normalise(
  { config, progress }: Run,
  figures: number[][],
): { figures: number[][]; metrics: Record<string, number> } {
  const { running_norm, running_norm_minus_mean: center, clip } = config.rllm.reward;
  const metrics: Record<string, number> = {};
  let flat = figures.flat();
  if (running_norm) {
    const normalised = normalizeRewards(progress.rewardMoments ?? noMoments, flat, { center });
    flat = normalised.rewards;
    progress.rewardMoments = normalised.moments;
    metrics["reward/running_mean"] = normalised.moments.mean;
    metrics["reward/running_std"] = runningDeviation(normalised.moments);
  }
  if (clip > 0) {
    const { values, fraction } = clipSymmetric(flat, clip);
    flat = values;
    metrics["reward/clip_fraction"] = fraction;
  }
  let position = 0;
  return { figures: figures.map((own) => own.map(() => flat[position++]!)), metrics };
}

/** As rLLM counts. */
const negligible = 1e-8;

function isZero(advantage: MemberAdvantage | StepAdvantage): boolean {
  if (typeof advantage === "number") return Math.abs(advantage) <= negligible;
  return Array.from<StepAdvantage>(advantage as ArrayLike<StepAdvantage>).every(isZero);
}

/** One figure a trajectory, for metrics: its advantage, or the mean of its steps'. */
export function figuresOf({ advantages }: Credit): number[][] {
  const figure = (advantage: MemberAdvantage | StepAdvantage): number =>
    typeof advantage === "number"
      ? advantage
      : mean(Array.from<StepAdvantage>(advantage as ArrayLike<StepAdvantage>).map(figure));
  return advantages.map((own) => own.map(figure));
}
