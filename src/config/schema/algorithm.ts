/** `rllm.algorithm`, `rllm.stepwise_advantage`, `rllm.critic`: what is learned from the rewards. */
import { z } from "zod";
import { count, share, text } from "./about.ts";

/** Every estimator that the documents and the systems behind them name. */
export const estimatorNames = [
  "grpo",
  "group_norm",
  "dr_grpo",
  "reinforce",
  "reinforce_baseline",
  "reinforce_plus_plus",
  "reinforce_plus_plus_baseline",
  "rloo",
  "prpo",
  "cpgd",
  "gae",
  "remax",
  "opo",
  "gpg",
  "grpo_passk",
  "optimal_token_baseline",
  "maxrl",
] as const;

/** Tinker's, verl's and LightRFT's names of losses; `vanilla` is verl's ppo, `geo_mean` its gmpo. */
export const lossNames = [
  "importance_sampling",
  "ppo",
  "vanilla",
  "cispo",
  "dro",
  "cross_entropy",
  "gspo",
  "gmpo",
  "geo_mean",
  "cpgd",
  "sapo",
  "gpg",
  "reinforce",
  "clip_cov",
  "kl_cov",
] as const;

const rolloutCorrection = z
  .strictObject({
    bypass_mode: z
      .boolean()
      .nullable()
      .default(null)
      .describe(
        "true: the sampler's log-probabilities are the old policy's; false: the trainer computes its own; null: as the backend has it.",
      )
      .meta({ note: "rLLM pins true on Tinker and false on verl; the local engine has false." }),
    tis_mode: z
      .enum(["token", "sequence"])
      .nullable()
      .default(null)
      .describe("Truncated importance sampling between sampler and trainer, by token or by sequence; null is off.")
      .meta({ note: "Needs log-probabilities of the trainer's own: not with bypass_mode=true." }),
    tis_cap: z
      .number()
      .gt(0)
      .default(2)
      .describe("The importance weight is cut off above this.")
      .meta({ note: "rLLM's bare class says 5, its YAML 2." }),
    tis_normalize: z.boolean().default(false).describe("Divide the importance weights by their mean over the batch."),
    rs_mode: z
      .array(text)
      .nullable()
      .default(null)
      .describe(
        "Take tokens or sequences whose sampler and trainer disagree out of the loss, e.g. [token_k1, seq_mean_k3].",
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
      .describe("Threshold of each rs_mode: an upper bound, or for k1 the ratio's bounds as low_high."),
  })
  .prefault({});

/** Constants of single losses, under verl's names where it has them. */
const policyLoss = z
  .strictObject({
    gspo_gradient: z
      .enum(["token", "sequence"])
      .default("token")
      .describe("gspo: gradient by token with the ratio held fixed (verl), or through the sequence's mean (TRL)."),
    cispo_low: z
      .number()
      .min(0)
      .nullable()
      .default(null)
      .describe("cispo: lower bound of the importance weight; null is 1 - eps_clip."),
    cispo_high: z
      .number()
      .gt(0)
      .nullable()
      .default(null)
      .describe("cispo: upper bound of the importance weight; null is 1 + eps_clip_high."),
    dro_beta: z.number().min(0).default(0.05).describe("dro: weight of the quadratic term."),
    tau_pos: z.number().gt(0).default(1).describe("sapo: temperature for advantages above 0."),
    tau_neg: z.number().gt(0).default(1.05).describe("sapo: temperature for advantages of 0 and below."),
    clip_cov_ratio: share.default(0.0002).describe("clip_cov: share of tokens taken out of the loss."),
    clip_cov_lb: z.number().default(1).describe("clip_cov: lower bound of the covariance."),
    clip_cov_ub: z.number().default(5).describe("clip_cov: upper bound of the covariance."),
    kl_cov_ratio: share.default(0.0002).describe("kl_cov: share of tokens that get the KL term."),
    ppo_kl_coef: z.number().min(0).default(0.1).describe("kl_cov: weight of the KL term."),
    cpgd_drift_coef: z
      .number()
      .min(0)
      .default(0.1)
      .describe("cpgd: weight of the KL to the old policy, the paper's policy drift; 0 is off.")
      .meta({ note: "LightRFT's code has no such term." }),
  })
  .prefault({});

export const algorithm = z
  .strictObject({
    adv_estimator: text
      .default("grpo")
      .describe("Advantage estimator: one of the names, or that of an estimator of your own.")
      .meta({
        options: estimatorNames,
        note: "The document lists grpo, reinforce, reinforce_plus_plus_baseline and rloo; rLLM's code has prpo too.",
      }),
    estimator_preset: z
      .enum(["rllm", "lightrft", "verl", "trl"])
      .default("rllm")
      .describe("Whose constants the estimator has: kind of deviation, epsilon, a group of one."),
    norm_adv_by_std_in_grpo: z
      .boolean()
      .default(true)
      .describe("Divide GRPO's advantages by the group's standard deviation (false is Dr. GRPO's)."),
    estimator_map: z
      .record(z.string(), z.union([text, z.tuple([text, text])]))
      .default({})
      .describe("Estimator by role, or [estimator, loss], e.g. {solver: grpo, judge: reinforce}."),
    use_precomputed_advantage: z
      .boolean()
      .default(false)
      .describe("Take the advantages that the workflow left on its steps."),
    use_rllm: z
      .boolean()
      .nullable()
      .default(null)
      .describe("Has no meaning any more: the estimators are always Hone's own.")
      .meta({ neutral: [true, false], note: "Deprecated in rLLM; understood so that old scripts compose." }),
    gamma: share.default(1).describe("Discount from token to token: below 1 the earlier tokens of a reply count less."),
    lam: share
      .default(1)
      .describe(
        "gae: weight of what lies further ahead. 1: the whole reward that follows; 0: the critic's next value alone.",
      ),
    advantages_norm: z.boolean().default(false).describe("Whiten the advantages over the batch."),
    advantage_clip: z.number().min(0).default(0).describe("Clip advantages to plus and minus this; 0 is off."),
    loss_fn: text
      .nullable()
      .default(null)
      .describe(
        "Policy loss: one of the names, or that of a loss of your own; null is the backend's default (ppo, verl: vanilla).",
      )
      .meta({
        options: lossNames,
        note: "The document gives it to Tinker alone; on verl it is actor.policy_loss.loss_mode, and here every backend has it.",
      }),
    loss_fn_map: z.record(z.string(), text).default({}).describe("Policy loss by role."),
    policy_loss: policyLoss,
    loss_agg_mode: z
      .enum(["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
      .nullable()
      .default(null)
      .describe("How token losses become one figure; null is token-mean, for gspo, gmpo and sapo seq-mean-token-mean."),
    loss_scale_factor: z
      .number()
      .gt(0)
      .nullable()
      .default(null)
      .describe("Divisor of seq-mean-token-sum-norm; null is the longest reply allowed."),
    eps_clip: z.number().gt(0).nullable().default(0.2).describe("PPO clips the ratio below at 1 - eps_clip."),
    eps_clip_high: z
      .number()
      .gt(0)
      .nullable()
      .default(null)
      .describe("PPO clips the ratio above at 1 + eps_clip_high; null is eps_clip."),
    clip_ratio_c: z
      .number()
      .gt(1)
      .nullable()
      .default(null)
      .describe("Dual clip: where the advantage is negative the loss is cut off at this ratio; null is off.")
      .meta({ note: "verl's own default is 3." }),
    entropy_coeff: z.number().default(0).describe("Weight of the entropy bonus in the loss; 0 is off."),
    high_entropy_token_ratio: share
      .default(0)
      .describe("Train only this share of each reply's tokens, those of the highest entropy; 0 trains all."),
    kl_beta: z
      .number()
      .min(0)
      .nullable()
      .default(0)
      .describe("Weight of the KL to the reference (the base model) in the loss; 0 is off."),
    kl_estimator: z.enum(["k1", "k2", "k3", "abs"]).default("k3").describe("Estimator of that KL."),
    use_kl_in_reward: z
      .boolean()
      .default(false)
      .describe("Subtract the KL from the tokens' rewards instead of adding it to the loss."),
    kl_target: z
      .number()
      .gt(0)
      .nullable()
      .default(null)
      .describe("Adapt kl_beta so that the KL stays near this; null keeps it fixed."),
    kl_horizon: count.min(1).default(10_000).describe("Samples over which kl_beta adapts."),
    lr_schedule: z
      .enum(["constant", "linear", "cosine"])
      .default("constant")
      .describe("What the learning rate does after the warm-up."),
    warmup_steps: count.default(-1).describe("Optimizer steps that warm up; 0 or less goes by warmup_steps_ratio."),
    warmup_steps_ratio: share.default(0).describe("Share of all steps that warm up."),
    min_lr_ratio: share.default(0).describe("The schedule ends at this share of the learning rate."),
    router_replay: z
      .enum(["disabled", "R2", "R3"])
      .default("disabled")
      .describe(
        "Repeat a mixture-of-experts model's routing in training: R2 recorded by the trainer, R3 by the sampler.",
      )
      .meta({ later: "no engine records the routing yet" }),
    rollout_correction: rolloutCorrection,
  })
  .prefault({});

export const stepwiseAdvantage = z
  .strictObject({
    enable: z.boolean().default(false).describe("Compute advantages for the steps of a trajectory."),
    mode: z
      .enum(["broadcast", "per_step"])
      .default("broadcast")
      .describe("broadcast: each step gets its trajectory's advantage; per_step: steps are compared with each other.")
      .meta({
        note: "rLLM's code rewrites per_step to broadcast; here it is real.",
      }),
    normalize_by_steps: z.boolean().default(false).describe("Divide a trajectory's advantage by its number of steps."),
  })
  .prefault({});

export const critic = z
  .strictObject({
    learning_rate: z
      .number()
      .min(0)
      .default(9e-6)
      .describe("Peak learning rate of gae's critic; its schedule and betas are the policy's."),
    value_clip: z
      .number()
      .gt(0)
      .nullable()
      .default(0.5)
      .describe("Clip the change of a value within a step to plus and minus this; null is off."),
    value_coef: z.number().min(0).default(1).describe("Weight of the critic's loss."),
    warmup_steps: count.min(0).default(0).describe("First steps, which train the critic alone."),
  })
  .prefault({});
