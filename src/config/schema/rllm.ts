/** The sections of `rllm`, the keys of rLLM that every backend shares, in the order of its document. */
import { z } from "zod";
import { type EstimatorPreset, estimatorPresets, estimators } from "../../algorithms/estimators.ts";
import { constantSchemas, epsClip, lossNames, namedLosses, policyLosses } from "../../algorithms/policy-losses.ts";
import {
  aboveZero,
  count,
  freeArguments,
  hosts,
  notNegative,
  off,
  on,
  optionalText,
  positive,
  section,
  share,
  text,
} from "./about.ts";

// `rllm.agent`, `rllm.env`, `rllm.workflow`: the agent, environment and workflow that run episodes.

export const agent = section({
  name: text
    .default("math_agent")
    .describe("Agent for a script without a workflow: a registered name, or the path of your own module."),
  max_steps: positive
    .default(20)
    .describe("Maximum number of model calls per trajectory; one more call ends the rollout."),
  trajectory_timeout: aboveZero
    .nullable()
    .default(null)
    .describe("Time limit per trajectory in seconds, model and environment together; null sets no separate limit."),
  overlong_filter: off.describe("Exclude trajectories that hit a limit (length, steps or time) from the loss."),
  agent_args: freeArguments.default({}).describe("Arguments passed to the agent."),
  engine_args: z
    .object({
      n_parallel_agents: positive
        .nullable()
        .default(null)
        .describe("Same as rllm.workflow.n_parallel_tasks, and overrides it if set."),
    })
    // Further arguments are passed to the agent, like agent_args.
    .catchall(z.unknown())
    .prefault({}),
});

export const env = section({
  name: text
    .default("custom")
    .describe("Environment for a script without a workflow: a registered name, or the path of your own module."),
  env_args: freeArguments.default({}).describe("Arguments passed to the environment; they override the task's fields."),
});

const workflow_args = z
  .object({
    agent_cls: optionalText.describe("Agent that the workflow uses: a registered name or the path of a module."),
    agent_args: freeArguments.default({}).describe("Arguments passed to the workflow's agent."),
    env_cls: optionalText.describe("Environment that the workflow uses: a registered name or the path of a module."),
    env_args: freeArguments.default({}).describe("Arguments passed to the workflow's environment."),
    timeout: aboveZero
      .default(3600)
      .describe("Time limit in seconds for one attempt at a rollout, all phases except tear-down.")
      .meta({
        note: "rLLM's documentation has 1e6 seconds (over eleven days), so a hanging agent would practically never stop.",
      }),
    gamma: share
      .default(0)
      .describe(
        "Discount factor that adds the rewards of later steps to earlier steps; 0 leaves step rewards unchanged.",
      ),
    reward_bonus_coeff: z
      .number()
      .default(0)
      .describe("Adds this coefficient times the change in reward since the previous step."),
  })
  // Arguments of the named workflow: `resolveWorkflow` rejects unknown ones.
  .catchall(z.unknown())
  .prefault({});

export const workflow = section({
  use_workflow: off.describe(
    "Run the workflow in rllm.workflow.name instead of agent and environment. A script's own workflow always runs.",
  ),
  name: text
    .default("single_turn_workflow")
    .describe("Workflow for a script without one: a registered name, or the path of your own module."),
  workflow_args,
  n_parallel_tasks: positive
    .default(256)
    .describe("Number of rollouts that run concurrently.")
    .meta({ when: "rllm.agent.engine_args.n_parallel_agents=null" }),
  retry_limit: count
    .min(0)
    .default(3)
    .describe("Maximum number of retries of a rollout that failed for reasons other than the model's reply.")
    .meta({ note: "rLLM counts attempts: 3 means one attempt and two retries." }),
  set_up_timeout: aboveZero
    .nullable()
    .default(600)
    .describe("Time limit in seconds for the set-up of an attempt; null sets no separate limit."),
  score_timeout: aboveZero
    .nullable()
    .default(600)
    .describe("Time limit in seconds for computing the reward of an attempt; null sets no separate limit."),
  tear_down_timeout: aboveZero
    .default(60)
    .describe(
      "Time limit in seconds for each part of an attempt's tear-down; slower parts are abandoned and reported.",
    ),
  raise_on_error: on.describe("Stop the run when a rollout still fails after its retries."),
  on_agent_error: z
    .union([
      z.templateLiteral(["reward:", z.number()]).meta({ title: "reward:NUMBER" }),
      z.enum(["retry", "drop", "fail"]),
    ])
    .default("reward:0")
    .describe("What happens to a rollout whose agent throws after the model has replied.")
    .meta({
      note: "Specific to Hone. retry and drop bias training: they keep only replies that the agent could handle.",
    }),
  warm_queue_size: count
    .default(-1)
    .describe(
      "Number of containers that container() of hone-rl/containers keeps ready, 64 at most: 0 for none, negative for one for each core.",
    ),
});

// `rllm.algorithm`, `rllm.stepwise_advantage`, `rllm.critic`: advantages, losses and the critic.

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
  tis_cap: aboveZero.default(2).describe("Upper bound at which importance weights are truncated.").meta({
    when: "rllm.algorithm.rollout_correction.tis_mode",
    note: "rLLM's Python class defaults to 5, its YAML to 2.",
  }),
  tis_normalize: off
    .describe("Divide the importance weights by their mean over the batch.")
    .meta({ when: "rllm.algorithm.rollout_correction.tis_mode" }),
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
    .describe("One threshold per rs_mode: an upper bound, or for k1 the bounds of the ratio as low_high.")
    .meta({ when: "rllm.algorithm.rollout_correction.rs_mode" }),
});

const averagedBySequence = namedLosses.flatMap(([name, { aggMode }]) => (aggMode === undefined ? [] : [name]));

export const algorithm = section({
  adv_estimator: text
    .default("grpo")
    .describe("Advantage estimator: a built-in name, or the name of your own registered estimator.")
    .meta({
      when: "rllm.algorithm.use_precomputed_advantage=false",
      options: Object.keys(estimators),
      note: "rLLM's documentation lists grpo, reinforce, reinforce_plus_plus_baseline and rloo; rLLM's code also has prpo.",
    }),
  estimator_preset: z
    .enum(Object.keys(estimatorPresets) as EstimatorPreset[])
    .default("rllm")
    .describe("System whose constants the estimator uses: kind of standard deviation, epsilon, groups of size one.")
    .meta({ when: "rllm.algorithm.use_precomputed_advantage=false" }),
  norm_adv_by_std_in_grpo: on
    .describe("Divide GRPO's advantages by the group's standard deviation (false is Dr. GRPO).")
    .meta({ when: "rllm.algorithm.use_precomputed_advantage=false" }),
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
    .describe("Divisor of the sum over a reply with seq-mean-token-sum-norm; null is data.max_response_length.")
    .meta({ when: "rllm.algorithm.loss_agg_mode=seq-mean-token-sum-norm" }),
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
    )
    .meta({ when: "rllm.algorithm.kl_beta above 0" }),
  use_kl_in_reward: off
    .describe("Subtract the KL from token rewards instead of adding it to the loss.")
    .meta({ when: "rllm.algorithm.kl_beta above 0" }),
  kl_target: aboveZero
    .nullable()
    .default(null)
    .describe("Adapt kl_beta to keep the KL near this value; null keeps kl_beta fixed.")
    .meta({ when: "rllm.algorithm.kl_beta above 0" }),
  kl_horizon: positive
    .default(10_000)
    .describe("Speed of the adaptation: kl_beta changes by at most about 20% per this many rollouts.")
    .meta({ when: "rllm.algorithm.kl_target" }),
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
}).meta({ when: "rllm.stepwise_advantage.enable=true" });

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

// Filters of training data: flags at the top of `rllm`, `compact_filtering`, `rejection_sample`, `dynamic_sampling`.

export const processingFlags = {
  disable_thinking: off.describe("Request replies without thinking, through the chat template."),
  accumulate_reasoning: off.describe(
    "Keep the thinking of earlier replies in later prompts, even if the chat template drops it.",
  ),
  mask_truncated_samples: off.describe("Exclude sequences whose last reply was truncated from the loss."),
  filter_token_mismatch: on
    .describe("Drop trajectories in which later prompts do not repeat the history as sampled; false splits them there.")
    .meta({ note: "rLLM's unified trainer no longer reads this key." }),
};

/** How the texts of a conversation become tokens. */
export const chat = section({
  control_tokens_in_text: off.describe(
    "Read control tokens such as <|im_end|> in the text of messages, tool results and arguments as control tokens, as transformers does. By default they are ordinary text, so that a tool's result cannot end its turn; batch/control_tokens_in_text counts them.",
  ),
});

const mask = (byDefault: boolean, what: string) => z.boolean().default(byDefault).describe(`Exclude episodes ${what}.`);

export const compactFiltering = section({
  enable: off.describe("Exclude episodes from training depending on how they ended."),
  mask_max_prompt_length_exceeded: mask(true, "whose prompt became too long"),
  mask_max_response_length_exceeded: mask(true, "whose reply was truncated at the maximum length"),
  mask_env_done: mask(false, "that the environment ended"),
  mask_max_turns_exceeded: mask(true, "that reached the maximum number of turns"),
  mask_timeout: mask(true, "that timed out"),
  mask_unknown: mask(false, "that ended for an unknown reason"),
  mask_error: mask(true, "that failed"),
}).meta({ when: "rllm.compact_filtering.enable=true" });

export const rejectionSample = section({
  enable: off.describe(
    "Train only once the batch has enough partially solved tasks (some rollouts solve the task, others do not).",
  ),
  mode: z
    .enum(["none", "episode", "group"])
    .nullable()
    .default(null)
    .describe(
      "episode: draw until the batch has enough partially solved tasks; group, none: draw once; null: episode if enabled, else none.",
    ),
  multiplier: z.number().min(1).default(1).describe("Draw this many times the tasks of a batch.").meta({
    when: "rllm.rejection_sample.enable=true",
    note: "rLLM's documentation says rollouts; its code multiplies tasks, and so does Hone.",
  }),
  min_partial_solve_tasks: positive.default(1).describe("Minimum number of partially solved tasks in a batch."),
  min_trajs_per_group: positive
    .default(2)
    .describe("Drop groups with fewer trajectories than this, or than rllm.rollout.n if that is lower.")
    .meta({ note: "Applies even if rejection sampling is off, as in rLLM." }),
  max_rounds: positive
    .default(10)
    .describe("episode: stop drawing after this many rounds and train on what was collected."),
  filter_uniform_groups: off.describe("Drop groups whose rewards are all equal, because they have no training signal."),
});

export const dynamicSampling = section({
  enable: off.describe("Replace tasks whose rewards do not differ with newly drawn ones (DAPO)."),
  max_rounds: positive.default(10).describe("Stop drawing after this many rounds and train on what was collected."),
}).meta({ when: "rllm.dynamic_sampling.enable=true" });

// `rllm.reward`: reward processing, reward servers and reward models.

const roleWeights = z.union([z.number(), z.record(z.string(), z.number())]);

export const reward = section({
  clip: notNegative
    .default(0)
    .describe(
      "Clip the estimator's result for each trajectory to +/- this, before rllm.algorithm.advantages_norm; 0 is off.",
    ),
  running_norm: off.describe("Divide the estimator's result for each trajectory by its running standard deviation."),
  running_norm_minus_mean: off
    .describe("With running_norm: also subtract the running mean.")
    .meta({ when: "rllm.reward.running_norm=true" }),
  overlong: section({
    enable: off.describe("Penalize the reward of replies near the length limit (DAPO)."),
    buffer_len: positive
      .default(512)
      .describe("Number of tokens before the limit (rllm.data.max_response_length) over which the penalty grows."),
    penalty_factor: notNegative.default(1).describe("Penalty at the length limit."),
  }).meta({ when: "rllm.reward.overlong.enable=true" }),
  remote_url: z
    .array(text)
    .default([])
    .describe("URLs of reward servers: each receives the queries and returns rewards, which are summed."),
  model: z
    .union([text, z.array(text).min(1)])
    .nullable()
    .default(null)
    .describe(
      "Reward models: a Hugging Face directory or hub id of a sequence-classification model with one label or of a model with a value head, or a list of them. Each scores the last conversation of every trajectory, rendered with its own tokenizer and chat template.",
    ),
  model_weights: z
    .array(roleWeights)
    .default([])
    .describe(
      "Weight of each reward model's score in the reward, in the order of rllm.reward.model; empty means 1 for each. A map sets weights per role, e.g. {solver: 1}; the model does not score roles that are not in the map.",
    )
    .meta({ when: "rllm.reward.model" }),
  own_weight: roleWeights
    .default(1)
    .describe(
      "With reward models: weight of the script's own reward, which is added to the weighted scores. 0 ignores it, even if it is unknown. A map has weights per role; roles that it does not name have 1.",
    )
    .meta({ when: "rllm.reward.model" }),
  normalize: off
    .describe(
      "Normalize scores by the mean and standard deviation that a reward model's files store, as OpenRLHF's do: mean and std in config.json.",
    )
    .meta({ when: "rllm.reward.model" }),
  use_engine: off
    .describe(
      "Run the reward models on inference servers: those in rllm.reward.engine_url, or else one vLLM server per model, started by Hone.",
    )
    .meta({ when: "rllm.reward.model" }),
  engine_url: z
    .array(text)
    .refine((urls) => urls.every((url) => /^https?:\/\/[^/]/.test(url)), "must begin with http:// or https://")
    .default([])
    .describe(
      "Addresses of vLLM servers (--runner pooling) or SGLang servers (--is-embedding) that serve the reward models. Several servers of one model share its work. Their API key is the environment variable VLLM_API_KEY.",
    )
    .meta({ when: "rllm.reward.use_engine=true" }),
  batch_size: positive
    .default(64)
    .describe("Maximum number of replies per request to a reward server (remote_url, use_engine)."),
  timeout: aboveZero.max(300).default(120).describe("Time limit in seconds for a request to a reward server."),
  retries: count.min(0).default(4).describe("Maximum number of retries of a failed request to a reward server."),
});

// `rllm.rollout` and the older `sampling`: number of rollouts and sampling parameters.

const temperature = notNegative.default(1).describe("Sampling temperature; 0 is greedy.");
const top_p = z.number().gt(0).max(1).default(1).describe("Nucleus sampling threshold (top-p); 1 is off.");
const top_k = count.default(-1).describe("Sample from the k most likely tokens; -1 is off.");
const min_p = share.default(0).describe("Drop tokens less likely than min_p times the most likely one; 0 is off.");

const sampling = { temperature, top_p, top_k, min_p };

/** Other sampling parameters parse, but `later` rejects them at start. */
const rolloutSampling = z
  .object({
    ...sampling,
    max_tokens: positive
      .default(2048)
      .describe("Maximum reply length in tokens.")
      .meta({ written: "$" + "{rllm.data.max_response_length}" }),
  })
  .catchall(z.unknown().meta({ later: "this sampling parameter is not supported yet" }))
  .prefault({});

export const rollout = section({
  n: positive.default(8).describe("Number of rollouts per task during training.").meta({
    note: "rLLM's documentation says it is only logged; in its code and in Hone it sets how many rollouts run.",
  }),
  n_val: positive.default(1).describe("Number of rollouts per task during validation."),
  train: rolloutSampling,
  val: rolloutSampling,
});

export const samplingBlock = section({
  train: section(sampling),
  val: section(sampling),
});

// `rllm.remote_runtime`: coding agents on tasks in containers.

const multiplier = (what: string) => aboveZero.default(1).describe(`Factor of the tasks' time limits for ${what}.`);

export const remoteRuntime = section({
  enabled: off.describe("Run an agent of `backend` on each task, in place of a workflow or an environment."),
  backend: z
    .enum(["agentcore", "harbor"])
    .default("agentcore")
    .describe("What runs the agents. Only harbor is supported; AgentCore is refused."),
  agentcore: freeArguments
    .default({})
    .describe("Settings of AgentCore.")
    .meta({ later: "agents in AWS's AgentCore are not supported; rllm.remote_runtime.backend=harbor is" }),
  harbor: section({
    agent: z.string().default("pi").describe("One of Harbor's agents, or a class: package.module:Class."),
    environment_type: z
      .string()
      .nullable()
      .default(null)
      .describe("Where containers run: docker, podman, daytona, e2b, modal, ...; null is Docker, or else podman."),
    network: z
      .enum(["bridge", "host"])
      .default("bridge")
      .describe("Network of containers on this machine; host shares the machine's network, without isolation."),
    agent_kwargs: freeArguments.default({}).describe("Options of Harbor's agent."),
    program_folder: z
      .string()
      .nullable()
      .default(null)
      .describe("A folder of this machine with the agent's program, mounted; null installs it in each trial."),
    program_path: z.array(z.string()).default([]).describe("Folders in program_folder that have programs."),
    mounts: z
      .record(z.string(), z.string())
      .default({})
      .describe("More folders or files of this machine for the container, read-only, by their path in the container."),
    agent_timeout_multiplier: multiplier("the agent"),
    agent_setup_timeout_multiplier: multiplier("the agent's set-up"),
    verifier_timeout_multiplier: multiplier("the verifier"),
    environment_build_timeout_multiplier: multiplier("building and starting the environment"),
  }).describe("Settings of Harbor."),
  session_timeout: aboveZero
    .default(300)
    .describe("The most seconds that an agent gets for a task, also if the task allows more."),
}).meta({ when: "rllm.remote_runtime.enabled=true" });

// `rllm.sdk` and `rllm.gateway`: the server through which agents call the model, and its traces.

export const sdk = section({
  store: section({
    path: text
      .default("~/.rllm/traces.db")
      .describe("Path of the trace database. Setting it also sets rllm.gateway.store=sqlite, unless that key is set.")
      .meta({ when: "rllm.gateway.db_path=null" }),
    retention_days: aboveZero
      .nullable()
      .default(null)
      .describe("Delete traces older than this many days when a run opens the database; null keeps all."),
  }).meta({ when: "rllm.gateway.store=sqlite" }),
  processing: section({
    groupby_key: optionalText.describe(
      "Metadata key that groups calls into trajectories by its value; null groups calls by role.",
    ),
    traj_name_key: optionalText.describe("Metadata key whose value names the trajectory."),
  }),
  proxy: section({
    host: text
      .default("127.0.0.1")
      .describe("Address on which the gateway listens.")
      .meta({ when: "rllm.gateway.host=null" }),
    port: count
      .min(0)
      .max(65_535)
      .default(4000)
      .describe("Port of the gateway. In mode subprocess, 4000 means any free port.")
      .meta({
        when: "rllm.gateway.port=null",
        note: "Hone passes the port to the agents that it starts, so concurrent runs do not collide.",
      }),
    mode: z
      .enum(["subprocess", "external"])
      .default("subprocess")
      .describe("subprocess: agents run in this process or are started by it; external: agents run elsewhere.")
      .meta({ note: "In rLLM it sets who starts the proxy; Hone's gateway is part of the trainer." }),
    admin_token: text
      .default("my-shared-secret")
      .describe("Token for administrative requests. The default is rejected if other machines can reach the gateway.")
      // biome-ignore lint/suspicious/noTemplateCurlyInString: the configuration's references are spelled like that
      .meta({ secret: true, note: "The token is not saved with a run; set it as ${oc.env:HONE_ADMIN_TOKEN}." }),
  }),
});

export const gateway = section({
  host: optionalText.describe("Address on which the gateway listens; null uses rllm.sdk.proxy.host."),
  port: count
    .min(0)
    .max(65_535)
    .nullable()
    .default(null)
    .describe("Port of the gateway; 0 picks a free port, null uses rllm.sdk.proxy.port.")
    .meta({ note: "rLLM's default is 9090." }),
  tunnel: optionalText.describe(
    "URL of a tunnel to the gateway (http:// or https://), or cloudflared or ngrok, which Hone then starts and ends with the run. Calls then need API keys unless the URL is a loopback address.",
  ),
  store: z
    .enum(["memory", "sqlite"])
    .default("memory")
    .describe("Where model calls are stored in addition to the episodes: nowhere (memory) or in a database (sqlite)."),
  db_path: optionalText
    .describe(
      "Path of the trace database; null uses rllm.sdk.store.path. Setting it also sets rllm.gateway.store=sqlite, unless that key is set.",
    )
    .meta({ when: "rllm.gateway.store=sqlite" }),
  unenforceable: z
    .enum(["refuse", "allow"])
    .default("refuse")
    .describe(
      "Requests for guarantees that sampling cannot give (strict schemas, a required tool): refuse them, or allow and count them.",
    ),
  client_sampling: z
    .enum(["ignore", "honor"])
    .default("ignore")
    .describe(
      "Temperature, top_p, top_k, min_p and seed in agents' own calls: ignore and count them, or apply them (honor).",
    )
    .meta({
      aliases: { honour: "honor" },
      note: "A fixed seed or temperature 0 would make all rollouts of a task identical.",
    }),
  image_hosts: hosts.describe(
    "Hosts from which the gateway fetches images whose address a client sends: host names, *.example.com for those below it, * for all. Addresses that are not public must be listed too, as an IP address or a network. Default: images only as data URLs.",
  ),
  cumulative_token_mode: off
    .describe("Continue conversations from their recorded tokens. Hone always does this.")
    .meta({ neutral: [true], note: "It is an optional mode in rLLM; Hone never re-encodes tokens." }),
  renderer_family: text
    .default("auto")
    .describe("Renderer that converts messages to tokens; auto uses the model's own chat template.")
    .meta({ later: "the gateway supports only the model's own chat template so far" }),
});

// `rllm.trainer`, `rllm.async_training`, `rllm.episode_logging`: duration, schedules and logging of a run.

export const trainer = section({
  total_epochs: positive.default(10).describe("Number of passes over the training data."),
  total_batches: count
    .nullable()
    .default(-1)
    .describe("Total number of training steps; null, 0 or less uses total_epochs instead."),
  logger: z
    .array(z.enum(["console", "tensorboard", "wandb", "mlflow", "trackio"]))
    .default(["console"])
    .describe("Where metrics are logged, besides the run folder."),
  project_name: text.default("rllm-training").describe("Project name that groups runs in the loggers."),
  experiment_name: text.default("default").describe("Name of the run."),
  wandb_entity: optionalText.describe("Team or user in Weights & Biases; null is the account's default."),
  tensorboard_dir: optionalText.describe("Folder for TensorBoard files; null is tensorboard/ in the run folder."),
  test_freq: count
    .default(5)
    .describe("Validate every this many training steps (or epochs, see freq_unit); 0 or less: only at the end.")
    .meta({ note: "rLLM's documentation says epochs; its code and verl count training steps, and so does Hone." }),
  save_freq: count
    .default(20)
    .describe(
      "Save a checkpoint every this many training steps (or epochs, see freq_unit); 0 or less: only at the end.",
    )
    .meta({ note: "rLLM's documentation says epochs; its code and verl count training steps, and so does Hone." }),
  freq_unit: z.enum(["steps", "epochs"]).default("steps").describe("Unit of test_freq and save_freq."),
  val_before_train: on
    .describe("Validate before the first step.")
    .meta({ note: "rLLM's base.yaml has false; Hone follows rLLM's documentation (true)." }),
  val_only: off.describe("Validate and stop."),
  seed: count.min(0).default(0).describe("Random seed of the run; every random draw derives from it."),
  run_dir: z.string().nullable().default(null).describe("Run folder; null creates runs/{project}-{experiment}-{date}."),
  max_bad_steps: positive
    .default(3)
    .describe("Stop after this many consecutive steps with a non-finite loss or gradient."),
  plot_every: count
    .min(0)
    .default(10)
    .describe(
      "Every this many steps, draw plots as SVG and PNG (curves of reward, reply length and entropy; the distribution of reply lengths). The loggers receive the plots, histograms of reply length, reward and entropy, and sampled episodes. 0 is off.",
    ),
  plot_dir: optionalText
    .describe("Folder for plots; null is plots/ in the run folder.")
    .meta({ when: "rllm.trainer.plot_every above 0" }),
});

export const asyncTraining = section({
  enable: off.describe("Generate and train at the same time."),
  mini_batch_size: positive.default(64).describe("Number of task groups per optimizer step."),
  fwd_bwd_group_size: positive
    .nullable()
    .default(null)
    .describe("Number of groups per forward-backward pass; must divide mini_batch_size. null is mini_batch_size."),
  staleness_threshold: notNegative
    .default(0)
    .describe("How far generation may run ahead of training, as a fraction of the groups between two weight updates."),
  trigger_parameter_sync_step: positive
    .default(1)
    .describe("Number of optimizer steps between two updates of the sampler's weights."),
  partial_rollout: off.describe(
    "Continue running rollouts across a weight update instead of waiting for them to finish. A reply that is being sampled continues with the new weights; on SGLang and on vLLM servers without /inference/v1/generate, it keeps its LoRA adapter until it ends.",
  ),
  episode_offload_dir: optionalText.describe(
    "Folder for episodes whose group is incomplete; null keeps them in memory.",
  ),
  trajectory_group_offload_dir: optionalText.describe(
    "Folder for groups waiting for training; null keeps them in memory.",
  ),
}).meta({ when: "rllm.async_training.enable=true" });

export const episodeLogging = section({
  log_episodes: off.describe(
    "Also write each episode to its own readable JSON file. The run folder always keeps all episodes.",
  ),
  episode_log_dir: text
    // biome-ignore lint/suspicious/noTemplateCurlyInString: the configuration's references are spelled like that
    .default("logs/${rllm.trainer.project_name}/${rllm.trainer.experiment_name}")
    .describe("Folder for the files of log_episodes."),
}).meta({ when: "rllm.episode_logging.log_episodes=true" });
