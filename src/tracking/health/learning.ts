/** Health rules about learning: values that overflow, entropy and reward that collapse or do not change. */
import { backendSettings } from "../../config/compose/backends.ts";
import { valueAt } from "../../config/tree/value-at.ts";
import { mean, standardDeviation } from "../../statistics.ts";
import { stepSummary } from "../step-summary.ts";
import { lastValues, meanOfLast, type NewRule, percent } from "./rule.ts";

/** A setting for higher precision, unless it is set already or the backend has none. */
function higherPrecision(config: Parameters<NewRule>[0]): string | undefined {
  const { precision } = backendSettings[config.rllm.backend];
  if (precision === undefined || valueAt(config, precision.key) === precision.highest) return undefined;
  return `${precision.key}=${precision.highest}`;
}

export const gradientNotFinite: NewRule = (config) => {
  const precision = higherPrecision(config);
  let isUpdated = false;
  return ({ metrics }) => {
    const dropped = metrics["update/dropped_not_finite"] ?? 0;
    const norm = metrics["actor/grad_norm"] ?? 0;
    if (dropped === 0 && Number.isFinite(norm)) {
      isUpdated ||= (metrics["update/optimizer_steps"] ?? 0) > 0;
      return undefined;
    }
    const advice = isUpdated
      ? `lower training.learning_rate (now ${config.training.learning_rate})`
      : "before any update, so the learning rate is not the cause; check the rewards and the loss's options";
    const or = precision === undefined ? "" : ` or set ${precision}`;
    return `a loss or gradient was not finite, so its update was dropped; ${advice}${or}`;
  };
};

/** bfloat16 alone causes about 0.03 nats. */
const alarmingMismatch = 0.2;

export const samplerMismatch: NewRule = (config) => {
  const precision = higherPrecision(config);
  return ({ metrics }) => {
    const difference = metrics["rollout/logprob_diff_mean"] ?? 0;
    // A difference is expected from older weights.
    const { "async/staleness_max": lag = 0, "async/steps_since_sync": ahead = 1 } = metrics;
    if (difference <= alarmingMismatch || lag > 0 || ahead > 1) return undefined;
    const what = `log-probabilities of sampler and trainer differ by ${difference.toFixed(2)} nats per token (0.03 is normal)`;
    return `${what}; ${precision === undefined ? "" : `set ${precision} and `}check with \`hone doctor\``;
  };
};

/** Most of an update is smaller than what the weights' precision can express. */
export const updateLost: NewRule = (config) => {
  const precision = higherPrecision(config);
  const meanOfThree = meanOfLast(3);
  return ({ metrics }) => {
    const lost = meanOfThree(metrics["actor/update_lost_to_rounding"]);
    if (lost === undefined || lost < 0.5) return undefined;
    const advice = `raise training.learning_rate (now ${config.training.learning_rate})`;
    const or = precision === undefined ? "" : ` or set ${precision}`;
    return `${percent(lost)} of each update is lost when the weights are rounded; ${advice}${or}`;
  };
};

/** The entropy has fallen to a twentieth of its first value, and the task is not solved. */
export const entropyCollapse: NewRule = () => {
  const add = lastValues<number>(3);
  let first: number | undefined;
  let count = 0;
  let recent: readonly number[] = [];
  return ({ metrics, solved }) => {
    const { entropy } = stepSummary(metrics);
    if (entropy !== undefined) {
      first ??= entropy;
      count++;
      recent = add(entropy);
    }
    const now = mean(recent);
    if (solved || first === undefined || count < 4 || now > first / 20) return undefined;
    const change = `from ${first.toPrecision(2)} to ${now.toPrecision(2)} nats`;
    return `the entropy has collapsed ${change}; lower training.learning_rate or raise rllm.algorithm.kl_beta`;
  };
};

/** The reward has lost most of its gain, or, if there was no gain, most of its value. */
export const rewardCollapse: NewRule = ({ rllm: { trainer } }) => {
  const fix = trainer.save_freq > 0 ? "go back with training.resume_from_path and lower" : "start again with a lower";
  const add = lastValues<number>(3);
  let count = 0;
  let first = Number.NaN;
  let best = Number.NEGATIVE_INFINITY;
  let now = Number.NaN;
  return ({ reward }) => {
    if (reward !== undefined) {
      count++;
      now = mean(add(reward));
      if (count === 3) first = now;
      if (count >= 3) best = Math.max(best, now);
    }
    if (count < 6) return undefined;
    const much = Math.max(best - first, Math.abs(best) / 2) * 0.7;
    if (best - now < Math.max(much, 0.05)) return undefined;
    const fall = `from ${best.toFixed(3)} at its best to ${now.toFixed(3)}`;
    return `the reward has collapsed, ${fall}; ${fix} training.learning_rate`;
  };
};

const flatSteps = 20;

/** No trend over many steps: the two halves differ by less than their noise. */
export const rewardFlat: NewRule = ({ training, rllm: { rollout }, data }) => {
  const add = lastValues<number>(flatSteps);
  let rewards: readonly number[] = [];
  return ({ reward, solved }) => {
    if (reward !== undefined) rewards = add(reward);
    if (solved || rewards.length < flatSteps) return undefined;
    const [early, late] = [rewards.slice(0, flatSteps / 2), rewards.slice(flatSteps / 2)];
    const [first, second] = [mean(early), mean(late)];
    const noise = Math.hypot(standardDeviation(early), standardDeviation(late)) / Math.sqrt(flatSteps / 2);
    if (Math.abs(second - first) > Math.max(2 * noise, 0.01)) return undefined;
    return (
      `the reward has stayed at ${second.toFixed(3)} for ${flatSteps} steps; raise training.learning_rate ` +
      `(now ${training.learning_rate}), rllm.rollout.n (now ${rollout.n}) or data.train_batch_size (now ${data.train_batch_size})`
    );
  };
};
