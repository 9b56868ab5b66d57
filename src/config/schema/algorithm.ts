/** `rllm.algorithm`, `rllm.stepwise_advantage`, `rllm.critic`: advantages, losses and the critic. */
import { z } from "zod";
import { type EstimatorPreset, estimatorPresets } from "../../algorithms/estimators/estimator.ts";
import { estimators } from "../../algorithms/estimators/index.ts";
import {
  constantSchemas,
  epsClip,
  lossNames,
  namedLosses,
  policyLosses,
} from "../../algorithms/losses/policy-losses.ts";
import { aboveZero, count, notNegative, off, on, optionalText, positive, section, share, text } from "./about.ts";

const rolloutCorrection = section({
  bypass_mode: z
    .boolean()
    .nullable()
    .default(null)
    .describe(
      "true: use the sampler's log-probabilities as the old policy's; false: the trainer recomputes them; null: the backend's default.",
    )
    .meta({
      note: "The default is true on Tinker and false on verl, both fixed in rLLM, and false on the local backend.",
    }),
  tis_mode: z
    .enum(["token", "sequence"])
    .nullable()
    .default(null)
    .describe("Truncated importance sampling between sampler and trainer, per token or per sequence; null is off.")
    .meta({ note: "Requires the trainer's own log-probabilities, so it cannot be combined with bypass_mode=true." }),
  tis_cap: aboveZero
    .default(2)
    .describe("Upper bound at which importance weights are truncated.")
    .meta({ note: "rLLM's Python class defaults to 5, its YAML to 2." }),
  tis_normalize: off.describe("Divide the importance weights by their mean over the batch."),
  rs_mode: z
    .array(text)
    .nullable()
    .default(null)
    .describe(
      "Exclude tokens or sequences on which sampler and trainer disagree from the loss, e.g. [token_k1, seq_mean_k3].",
    )
    .meta({
      options: ["token", "seq_sum", "seq_mean", "seq_max"]
        .flatMap((level) => ["k1", "k2", "k3"].map((k) => `${level}_${k}`))
        .filter((name) => name !== "seq_max_k1"),
    }),
  rs_threshold: z
    .array(z.union([z.number(), text]))
    .nullable()
    .default(null)
    .describe("One threshold per rs_mode: an upper bound, or for k1 the bounds of the ratio as low_high."),
});

const averagedBySequence = namedLosses.flatMap(([name, { aggMode }]) => (aggMode === undefined ? [] : [name]));

export const algorithm = section({
  adv_estimator: text
    .default("grpo")
    .describe("Advantage estimator: a built-in name, or the name of your own registered estimator.")
    .meta({
      options: Object.keys(estimators),
      note: "rLLM's documentation lists grpo, reinforce, reinforce_plus_plus_baseline and rloo; rLLM's code also has prpo.",
    }),
  estimator_preset: z
    .enum(Object.keys(estimatorPresets) as EstimatorPreset[])
    .default("rllm")
    .describe("System whose constants the estimator uses: kind of standard deviation, epsilon, groups of size one."),
  norm_adv_by_std_in_grpo: on.describe(
    "Divide GRPO's advantages by the group's standard deviation (false is Dr. GRPO).",
  ),
  estimator_map: z
    .record(z.string(), z.union([text, z.tuple([text, text])]))
    .default({})
    .describe("Estimator, or [estimator, loss], per role, e.g. {solver: grpo, judge: reinforce}."),
  use_precomputed_advantage: off.describe(
    "Use the advantages that the workflow set on its steps instead of an estimator.",
  ),
  use_rllm: z
    .boolean()
    .nullable()
    .default(null)
    .describe("Has no effect: Hone always uses its own estimators.")
    .meta({ neutral: [true, false], note: "Deprecated in rLLM; accepted so that old scripts keep working." }),
  gamma: share
    .default(1)
    .describe("Discount factor per token: below 1, earlier tokens of a reply receive less of the reward."),
  lam: share
    .default(1)
    .describe("gae: lambda, the weight of later tokens. 1 uses the full return; 0 uses only the critic's next value."),
  advantages_norm: off.describe("Normalize advantages over the batch to mean 0 and variance 1 (whitening)."),
  advantage_clip: notNegative.default(0).describe("Clip advantages to +/- this; 0 is off."),
  loss_fn: optionalText
    .describe(
      "Policy loss: a built-in name, or the name of your own registered loss; null is the backend's default (ppo, on verl vanilla).",
    )
    .meta({
      options: lossNames,
      note: "rLLM's documentation lists it for Tinker only; verl calls it actor.policy_loss.loss_mode. Hone accepts it for every backend.",
    }),
  loss_fn_map: z.record(z.string(), text).default({}).describe("Policy loss per role."),
  policy_loss: section(constantSchemas),
  loss_agg_mode: z
    .enum(["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
    .nullable()
    .default(null)
    .describe(
      `How token losses are aggregated to a scalar; null is token-mean (seq-mean-token-mean for ${new Intl.ListFormat("en-GB").format(averagedBySequence)}).`,
    ),
  loss_scale_factor: aboveZero
    .nullable()
    .default(null)
    .describe("Divisor for seq-mean-token-sum-norm; null is data.max_response_length."),
  eps_clip: aboveZero
    .nullable()
    .default(epsClip)
    .describe(`PPO's lower clipping bound of the ratio is 1 - eps_clip; null is ${epsClip}.`),
  eps_clip_high: aboveZero
    .nullable()
    .default(null)
    .describe("PPO's upper clipping bound of the ratio is 1 + eps_clip_high; null uses eps_clip."),
  ...policyLosses.ppo.constants,
  entropy_coeff: z.number().default(0).describe("Weight of the entropy bonus in the loss; 0 is off."),
  high_entropy_token_ratio: share
    .default(0)
    .describe(
      "Train only on this fraction of each reply's tokens, those with the highest entropy; 0 or 1 trains on all.",
    )
    .meta({ neutral: [1] }),
  kl_beta: notNegative
    .nullable()
    .default(0)
    .describe("Weight of the KL divergence from the reference policy in the loss; 0 is off."),
  reference_model: optionalText.describe(
    "The reference policy: a directory or hub id of a model with the tokenizer of model.name. null is model.name itself.",
  ),
  kl_estimator: z
    .enum(["k1", "k2", "k3", "abs"])
    .default("k3")
    .describe(
      "Estimator of the KL divergence from the reference policy, from r, the log of the probability ratio policy / reference of a sampled token: k1 is r, k2 is r^2 / 2, k3 is exp(-r) - 1 + r, abs is |r|.",
    ),
  use_kl_in_reward: off.describe("Subtract the KL from token rewards instead of adding it to the loss."),
  kl_target: aboveZero
    .nullable()
    .default(null)
    .describe("Adapt kl_beta to keep the KL near this value; null keeps kl_beta fixed."),
  kl_horizon: positive
    .default(10_000)
    .describe("Speed of the adaptation: kl_beta changes by at most about 20% per this many rollouts."),
  lr_schedule: z
    .enum(["constant", "linear", "cosine"])
    .default("constant")
    .describe("Learning rate schedule after warm-up."),
  warmup_steps: count
    .default(-1)
    .describe("Number of warm-up training steps; 0 or less uses warmup_steps_ratio instead."),
  warmup_steps_ratio: share.default(0).describe("Fraction of all training steps used for warm-up."),
  min_lr_ratio: share
    .default(0)
    .describe("Final learning rate of the schedule as a fraction of the peak learning rate."),
  router_replay: z
    .enum(["disabled", "R2", "R3"])
    .default("disabled")
    .describe(
      "Replay a mixture-of-experts model's routing in training: R2 as the trainer chose first after each new version of the weights, R3 as the sampler chose.",
    ),
  rollout_correction: rolloutCorrection,
});

export const stepwiseAdvantage = section({
  enable: off.describe("Compute advantages per step of a trajectory."),
  mode: z
    .enum(["broadcast", "per_step"])
    .default("broadcast")
    .describe("broadcast: every step gets its trajectory's advantage; per_step: steps are compared with each other.")
    .meta({
      note: "rLLM's code replaces per_step with broadcast; Hone implements it.",
    }),
  normalize_by_steps: off.describe("Divide a trajectory's advantage by its number of steps."),
});

export const critic = section({
  model: optionalText.describe(
    "Model that the critic starts from: a directory or hub id with the tokenizer of model.name, such as a reward model, whose value head it keeps. null starts from model.name.",
  ),
  learning_rate: notNegative
    .default(9e-6)
    .describe("Peak learning rate of the critic used by gae; it shares the policy's schedule and betas."),
  value_clip: aboveZero
    .nullable()
    .default(0.5)
    .describe("Clip the change of the critic's value predictions within a step to +/- this; null is off."),
  value_coef: notNegative.default(1).describe("Weight of the critic's loss."),
  warmup_steps: count.min(0).default(0).describe("Number of first steps that train only the critic."),
});
