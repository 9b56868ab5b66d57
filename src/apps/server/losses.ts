/**
 * Tinker's losses, by the names that its clients send. Each is a plain sum over tokens and datums, without a mean
 * and without a mask; clip thresholds are bounds of the ratio itself, not distances from 1.
 *
 * In the formulas, p is a token's log-probability under the model, q that under the sampler (`logprobs`), A its advantage,
 * r = exp(p - q), and sg stops the gradient.
 */
import type { PolicyLossDefinition } from "../../algorithms/loss-definition.ts";
import { lossDefaults, namedLosses, policyLosses } from "../../algorithms/policy-losses.ts";
import type { Loss, LossValue } from "../../algorithms/types.ts";
import { UserError } from "../../base/errors.ts";
import { nearest } from "../../base/text.ts";
import { ownValue, valuesAt } from "../../base/values.ts";
import type { TokenOutputs } from "../../trajectories/types.ts";

type Values = Readonly<Record<string, Float32Array>>;
const none = new Float32Array(0);
type Config = Readonly<Record<string, number>>;

/** Adds one datum: writes dL/dp of each of its outputs and gives its part of the loss. */
type DatumLoss = (p: Float32Array, inputs: Values, config: Config, slopes: Float32Array) => number;

interface TinkerLoss {
  /** The inputs that a datum must have besides `target_tokens`: one float32 per output. */
  inputs: readonly string[];
  /** Inputs that may be left out, with the value they then have everywhere. */
  defaults?: Readonly<Record<string, number>>;
  /** The settings with their defaults; null: required. */
  config: Readonly<Record<string, number | null>>;
  /** Whether targets may be `[N, K]`. */
  severalTargets?: true;
  datum: DatumLoss;
}

/** One of Hone's own losses, without a limit on log-ratios. `average` returns the log-ratio of a sequence with a single ratio. */
const ownLoss =
  (loss: PolicyLossDefinition, average?: (logRatios: Float64Array, inputs: Values) => number): DatumLoss =>
  (
    p,
    inputs,
    { clip_low_threshold: low = 0, clip_high_threshold: high = Number.POSITIVE_INFINITY, beta = 0 },
    slopes,
  ) => {
    const { logprobs: sampler = none, advantages = none } = inputs;
    const logRatios = Float64Array.from(p, (logprob, index) => logprob - (sampler[index] ?? 0));
    const mean = average?.(logRatios, inputs);
    const old = mean === undefined ? sampler : Float64Array.from(p, (logprob) => logprob - mean);
    const settings = { ...lossDefaults, low, high, dro_beta: beta, logRatioLimit: Number.POSITIVE_INFINITY };
    const values = loss.evaluate({ logprobs: p, old, advantages }, settings);
    slopes.set(values.slopes);
    return values.losses.reduce((sum, value) => sum + value, 0);
  };

const policyInputs = ["logprobs", "advantages"] as const;
/** Hone's losses that differ here from their definitions. */
const others: Readonly<Record<string, Omit<TinkerLoss, "config">>> = {
  /** `-w p` */
  cross_entropy: {
    inputs: ["weights"],
    defaults: { weights: 1 },
    severalTargets: true,
    datum(p, { weights = none }, _config, slopes) {
      let sum = 0;
      for (const [index, logprob] of p.entries()) {
        const weight = weights[index] ?? 0;
        // A weight of 0 leaves a token out, also where its log-probability is minus infinity.
        if (weight !== 0) sum -= weight * logprob;
        slopes[index] = -weight;
      }
      return sum;
    },
  },
  /**
   * PPO with one ratio per sequence, `exp(mean of p - q where the mask is not 0)`. The gradient of each token is that of a
   * ratio of its own (GSPO-token, arXiv 2507.18071).
   */
  gspo: {
    inputs: [...policyInputs, "sequence_ratio_mask"],
    datum: ownLoss(policyLosses.ppo, (logRatios, { sequence_ratio_mask: mask = none }) => {
      const counted = logRatios.filter((_, index) => mask[index] !== 0);
      if (counted.length === 0) throw new UserError("gspo: sequence_ratio_mask is 0 everywhere, so there is no ratio");
      return counted.reduce((sum, logRatio) => sum + logRatio, 0) / counted.length;
    }),
  },
};

const tinkerLosses: Readonly<Record<string, TinkerLoss>> = Object.fromEntries(
  namedLosses.flatMap(([name, loss]) => {
    if (loss.served === undefined) return [];
    return [[name, { inputs: policyInputs, datum: ownLoss(loss), ...ownValue(others, name), config: loss.served }]];
  }),
);

const notOffered: Readonly<Record<string, string>> = {
  stable_reinforce: "its formula is not published",
  custom: "use forward_backward_custom, which computes a custom loss in the client",
};

/** @throws UserError when there is no such loss */
export function tinkerLoss(name: string): TinkerLoss {
  const loss = Object.hasOwn(tinkerLosses, name) ? tinkerLosses[name] : undefined;
  if (loss) return loss;
  const names = Object.keys(tinkerLosses);
  if (Object.hasOwn(notOffered, name)) {
    throw new UserError(`loss_fn "${name}" is not supported: ${notOffered[name]}. The losses are ${names.join(", ")}`);
  }
  const near = nearest(name, names);
  const meant = near.length > 0 ? `. Did you mean ${near.join(" or ")}?` : ".";
  throw new UserError(`the loss_fn "${name}" does not exist${meant} The losses are ${names.join(", ")}`);
}

/** @throws UserError for a setting that is unknown, not a number, or missing */
export function lossConfig(name: string, given: Readonly<Record<string, number | string>>): Config {
  const { config } = tinkerLoss(name);
  const known = Object.keys(config);
  for (const [key, value] of Object.entries(given)) {
    if (!Object.hasOwn(config, key)) {
      const text = known.length === 0 ? "it has no settings" : `it has ${known.join(", ")}`;
      throw new UserError(`loss_fn_config: ${name} has no setting ${key}; ${text}`);
    }
    if (typeof value !== "number" || !Number.isFinite(value)) {
      throw new UserError(`loss_fn_config.${key} is ${JSON.stringify(value)}, not a finite number`);
    }
  }
  const whole: Record<string, number> = {};
  for (const key of known) {
    const value = given[key] ?? config[key];
    if (typeof value !== "number")
      throw new UserError(`loss_fn_config.${key} must be given for ${name}: it has no default`);
    whole[key] = value;
  }
  const { clip_low_threshold: low, clip_high_threshold: high } = whole;
  if (low !== undefined && high !== undefined && low > high) {
    throw new UserError(`loss_fn_config: clip_low_threshold ${low} is above clip_high_threshold ${high}`);
  }
  return whole;
}

/** @param inputs the inputs of each datum, in the order of the sequences that the engine is given */
export function sumLoss(name: string, inputs: readonly Values[], config: Config): Loss {
  const { datum } = tinkerLoss(name);
  return {
    name,
    outputs: {},
    evaluate(outputs: TokenOutputs, members: Int32Array): LossValue {
      const gradient = new Float32Array(outputs.logprobs.length);
      let loss = 0;
      for (const [row, input] of valuesAt(inputs, members).entries()) {
        const [from, to] = outputs.offsets.subarray(row, row + 2);
        loss += datum(outputs.logprobs.subarray(from, to), input, config, gradient.subarray(from, to));
      }
      return { loss, gradient: { logprobs: gradient }, metrics: {} };
    },
  };
}
