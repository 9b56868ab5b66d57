/**
 * Settings that are refused: those that contradict others on every backend, those that an engine or a model does not support, and what the
 * metadata of the schema says.
 */
import { splitEstimatorMap } from "../algorithms/advantages.ts";
import { rejectionBounds } from "../algorithms/off-policy.ts";
import { backendHolding } from "../backends/backends.ts";
import { changesDistribution } from "../backends/engine-parts.ts";
import { modelReadsImages } from "../backends/local/models.ts";
import { trainingProcesses } from "../backends/local/options.ts";
import {
  ability,
  below,
  contradicts,
  coupledLosses,
  estimatorsIn,
  estimatorsThatNeed,
  hasCoupledLoss,
  hasCritic,
  needOf,
  needsValue,
  ownLosses,
  type Rule,
  type ScriptFacts,
  under,
  withOlderNames,
} from "../backends/rule.ts";
import { nearest } from "../base/text.ts";
import { type About, isModulePath } from "../config/schema/about.ts";
import { type Config, configKeys } from "../config/schema.ts";
import { tasksPerDraw } from "../data/dataset.ts";

const algorithm = "rllm.algorithm";
const correction = `${algorithm}.rollout_correction`;
const stepwise = "rllm.stepwise_advantage";
const asynchronous = "rllm.async_training";
const workflow = "rllm.workflow";

export const isPerStep = ({ rllm: { stepwise_advantage: stepwise } }: Config) =>
  stepwise.enable && stepwise.mode === "per_step";

/** Whether each step has an advantage of its own. */
const hasStepAdvantages = (config: Config) => isPerStep(config) || config.rllm.algorithm.use_precomputed_advantage;
const whole = `one advantage for each trajectory: neither ${algorithm}.use_precomputed_advantage nor ${stepwise}.mode=per_step`;

/** The checkpoint's holder, if the run resumes from a path. */
const holderOf = ({ training: { resume_mode: mode, resume_from_path: path } }: Config) =>
  mode === "path" && path !== null ? backendHolding(path) : undefined;

/** Metrics that can select the best checkpoint. */
function metricsOf({ data, rllm, training }: Config, validation: string | undefined): string[] {
  const counts = [...new Set([1, rllm.rollout.n_val])];
  const solved = counts.map((count) => `val/${validation}/pass@${count}`);
  const tasks = validation === undefined ? [] : ["val/reward", `val/${validation}/reward`, ...solved];
  const own = training.source === "rollouts" || data.val_files === null ? [] : ["val/log_likelihood"];
  return [...tasks, ...own];
}

/** Episodes are held in memory with their tokens; more than this is a typing mistake. */
const maxTokensPerStep = 2e9;

function tokensPerStep(config: Config): number {
  const { n, n_val } = config.rllm.rollout;
  return Math.max(tasksPerDraw(config) * n, n_val) * config.data.max_response_length;
}

const batchKey = ({ rllm }: Config) =>
  rllm.async_training.enable ? `${asynchronous}.mini_batch_size` : "data.train_batch_size";

export const contradictions: readonly Rule[] = [
  contradicts(
    ["rllm.remote_runtime.enabled"],
    "rllm.remote_runtime.backend=harbor, because agents in AWS's AgentCore are not supported",
    ({ rllm: { remote_runtime: runtime } }) => !runtime.enabled || runtime.backend === "harbor",
    "set rllm.remote_runtime.backend=harbor, which also runs agents in Modal, Daytona, E2B and Kubernetes",
  ),
  contradicts(
    [`${stepwise}.normalize_by_steps`],
    `${stepwise}.mode=broadcast: with per_step each step has its own advantage, which is not divided`,
    (config) => !isPerStep(config),
    "remove one of the two",
  ),
  contradicts(
    [`${stepwise}.enable`],
    `${algorithm}.use_precomputed_advantage=false, because both define the steps' advantages`,
    ({ rllm }) => !rllm.stepwise_advantage.enable || !rllm.algorithm.use_precomputed_advantage,
    "remove one of the two",
  ),
  contradicts(
    ["rllm.reward.running_norm", "rllm.reward.clip", `${algorithm}.gamma`],
    whole,
    (config) => !hasStepAdvantages(config),
    "remove it; rllm.workflow.workflow_args.gamma discounts the rewards of steps",
  ),
  contradicts(["rllm.reward.model"], whole, (config) => !hasStepAdvantages(config), "remove one of the two"),
  {
    ...contradicts(
      under(algorithm, "adv_estimator", "estimator_map"),
      `neither ${stepwise}.mode=per_step nor normalize_by_steps: a critic's values are compared with one reward, at the trajectory's last token`,
      (config, script) => {
        const { enable, mode, normalize_by_steps: divides } = config.rllm.stepwise_advantage;
        return !(enable && (mode === "per_step" || divides) && hasCritic(config, script));
      },
      "remove one of the two",
    ),
    when: `with ${estimatorsThatNeed("values")}`,
  },
  contradicts(
    [`${correction}.tis_mode`],
    `${correction}.bypass_mode=false`,
    ({ rllm }) => rllm.algorithm.rollout_correction.bypass_mode !== true,
  ),

  contradicts(
    [`${asynchronous}.fwd_bwd_group_size`],
    `a divisor of ${asynchronous}.mini_batch_size`,
    ({ rllm: { async_training: keys } }) =>
      !keys.enable || keys.mini_batch_size % (keys.fwd_bwd_group_size ?? keys.mini_batch_size) === 0,
    "set a divisor, or null for all groups at once",
  ),
  {
    ...contradicts(
      [`${asynchronous}.fwd_bwd_group_size`],
      `${asynchronous}.mini_batch_size groups at once, because these losses compare all tokens of a step`,
      (config, script) => {
        const { enable, fwd_bwd_group_size: atOnce, mini_batch_size: batch } = config.rllm.async_training;
        return !enable || (atOnce ?? batch) >= batch || !hasCoupledLoss(config, script);
      },
      "set it to null",
    ),
    when: `with ${coupledLosses}`,
  },
  contradicts(
    under("rllm.rejection_sample", "enable", "mode"),
    `${asynchronous}.enable=false, because it draws whole batches again`,
    ({ rllm: { async_training, rejection_sample: rejection } }) =>
      !async_training.enable || !(rejection.enable || rejection.mode === "episode"),
    "set rllm.dynamic_sampling.enable=true, which replaces single tasks that teach nothing",
  ),

  contradicts(
    ["rllm.reward.model"],
    "data.mixed_mm_data=false: reward models read only text, so conversations with images would have no reward",
    ({ data }) => !data.mixed_mm_data,
    "grade images with a reward function",
  ),
  contradicts(
    ["rllm.reward.model_weights"],
    "one weight for each model of rllm.reward.model",
    ({ rllm: { reward } }) => reward.model === null || reward.model_weights.length === [reward.model].flat().length,
    "set one weight per model, or none",
  ),
  {
    ...contradicts(
      under("model", "train_attn", "train_mlp"),
      "layers for the critic to train, which has no output layer: model.train_attn or train_mlp",
      (config, script) => {
        const { lora_rank: rank, train_attn, train_mlp } = config.model;
        return rank === 0 || train_attn || train_mlp || !hasCritic(config, script);
      },
      "model.train_mlp=true, or an estimator without a critic, e.g. rllm.algorithm.adv_estimator=rloo",
    ),
    when: `with ${estimatorsThatNeed("values")}`,
  },
  contradicts(
    ["rllm.trainer.val_only"],
    "a validation dataset in the script",
    (_, script) => script && script.validation !== undefined,
    "give the experiment a `validation` dataset",
  ),
  contradicts(
    ["training.keep_best"],
    "a validation dataset in the script, or data.val_files with hone sft or hone dpo",
    ({ data, training }, script) =>
      (training.source !== "rollouts" && data.val_files !== null) || (script && script.validation !== undefined),
    "give the experiment a `validation` dataset",
  ),
  contradicts(
    [`${workflow}.name`, ...under(`${workflow}.workflow_args`, "agent_cls", "agent_args", "env_cls", "env_args")],
    `${workflow}.use_workflow=true`,
    ({ rllm }) => rllm.workflow.use_workflow,
  ),

  contradicts(
    ["local.processes"],
    "local.device=auto, cuda or cpu",
    (config) => trainingProcesses(config) === 1 || ["auto", "cuda", "cpu"].includes(config.local.device),
  ),
  contradicts(
    ["local.sequence_parallel"],
    "local.processes to be a multiple of it",
    (config) => trainingProcesses(config) % config.local.sequence_parallel === 0,
  ),

  contradicts(
    [`${correction}.rs_mode`],
    `one threshold for each rule in ${correction}.rs_threshold: a positive number; k1 also takes "low_high"`,
    ({ rllm }) => {
      const { rs_mode: names, rs_threshold: thresholds } = rllm.algorithm.rollout_correction;
      return (names ?? []).every((name, index) => rejectionBounds(name, thresholds?.[index]) !== undefined);
    },
  ),
  {
    outcome: "invalid",
    keys: ["training.best_metric"],
    isMet: ({ config, script }) =>
      metricsOf(config, script?.validation).length === 0 ||
      metricsOf(config, script?.validation).includes(config.training.best_metric),
    because({ config, script }, value) {
      const names = metricsOf(config, script?.validation);
      const near = nearest(String(value), names, 1);
      const help = near.length > 0 ? `did you mean ${near.join()}?` : `the metrics are ${names.join(", ")}`;
      return `it is not a metric of the validation${script?.validation === undefined ? "" : ` dataset ${script.validation}`}; ${help}`;
    },
  },
  // Only of a run: other commands load a model without a script.
  ...[false, true].map(
    (isAsync): Rule => ({
      outcome: "invalid",
      keys: [isAsync ? `${asynchronous}.mini_batch_size` : "data.train_batch_size"],
      isMet: ({ config, script }) =>
        script === undefined ||
        config.rllm.trainer.val_only ||
        config.training.source !== "rollouts" ||
        config.rllm.async_training.enable !== isAsync ||
        tasksPerDraw(config) <= script.tasks,
      because: ({ config, script }) =>
        `a draw takes ${tasksPerDraw(config)} tasks, but the dataset has only ${script?.tasks}; set ${script?.tasks} or less, or add tasks`,
      atDefault: true,
    }),
  ),
  {
    outcome: "invalid",
    keys: ["data.max_response_length"],
    isMet: ({ config }) => tokensPerStep(config) <= maxTokensPerStep,
    because: ({ config }) =>
      `a step would hold up to ${tokensPerStep(config).toPrecision(3)} sampled tokens in memory; the limit is ${maxTokensPerStep}. Lower it, ${batchKey(config)} (${tasksPerDraw(config)} tasks per draw) or rllm.rollout.n (${config.rllm.rollout.n})`,
    atDefault: true,
  },
  {
    outcome: "invalid",
    keys: ["training.resume_mode"],
    isMet: ({ config: { training, rllm }, script }) =>
      script === undefined ||
      rllm.trainer.val_only ||
      training.resume_mode !== "path" ||
      training.resume_from_path !== null,
    because: () => "it requires training.resume_from_path",
    hint: "training.resume_from_path=runs/latest/checkpoints/step-000010",
    atDefault: true,
  },
  {
    outcome: "invalid",
    keys: ["training.resume_from_path"],
    isMet: ({ config, script }) => script === undefined || [undefined, config.rllm.backend].includes(holderOf(config)),
    because: ({ config }) => `it is stored by a service of the ${holderOf(config)} backend`,
    hint: "train with that backend, or name a checkpoint's folder",
  },
];

// What settings require of the engine and of the model.

const critic = `a critic (${estimatorsThatNeed("values")})`;

/** The outputs that estimators need in addition to log-probabilities. */
const estimatorOutputs = [
  ["values", critic],
  ["concentration", `the sums of squared probabilities (${estimatorsThatNeed("concentration")})`],
] as const;

/** Whether the sampler reports the model's own log-probabilities only because sampling does not change the distribution. */
function samplesAsIs({ rllm }: Config): boolean {
  const { temperature, top_p: topP, top_k: topK, min_p: minP } = rllm.rollout.train;
  return !changesDistribution({ temperature, topP, topK, minP });
}
const asIs = {
  when: "with a sampler that reports log-probabilities after temperature and filters",
  requires: "sampling with temperature=1, top_p=1, top_k=-1 and min_p=0",
};

export const abilities: readonly Rule[] = [
  ability(
    under(algorithm, "entropy_coeff", "high_entropy_token_ratio"),
    "entropies",
    ({ outputs }, value) => value === 0 || outputs.includes("entropy"),
  ),
  ability(under(algorithm, "loss_fn", "loss_fn_map", "estimator_map"), "entropies", ({ outputs }, value, situation) => {
    const { config, script } = situation;
    const reads = value !== undefined && ownLosses(config, script).some(({ inputs }) => inputs.includes("entropy"));
    return !reads || outputs.includes("entropy");
  }),
  ...estimatorOutputs.map(([output, requires]) =>
    ability(
      under(algorithm, "adv_estimator", "estimator_map"),
      requires,
      ({ outputs }, value, { script }) =>
        outputs.includes(output) || !estimatorsIn(value).some((name) => needOf(name, script) === output),
    ),
  ),
  ability([...below("rllm.critic"), `${algorithm}.lam`], critic, ({ outputs }) => outputs.includes("values")),
  ability(["rllm.reward.model"], "reward models, or servers for them (rllm.reward.use_engine=true)", ({ outputs }) =>
    outputs.includes("scores"),
  ),
  ability(
    ["rllm.critic.model", `${algorithm}.reference_model`],
    "models other than the run's own",
    ({ otherModels }, value) => otherModels || value === null,
  ),
  ability(
    ["data.mixed_mm_data", "model.processor"],
    "images",
    ({ images }, value) => images || value === null || value === false,
  ),
  {
    outcome: "unsupported",
    keys: ["data.mixed_mm_data", "model.processor", "model.train_vision"],
    requires: "a model that reads images",
    isMet: ({ config }) => modelReadsImages(config),
  },
  ability(
    ["model.train_vision"],
    "training of the vision part",
    ({ images, trainsVision }, value) => (images && trainsVision === true) || value === false,
  ),
  ability(
    ["model.lora_rank"],
    "training of all weights",
    ({ adapters }, value) => value !== 0 || adapters.includes("full"),
  ),
  ability(
    ["model.train_unembed"],
    "LoRA on the output embedding",
    ({ loraTargets }, value, { config }) =>
      value === false || config.model.lora_rank === 0 || loraTargets.includes("unembed"),
  ),
  ability(
    ["rllm.algorithm.router_replay"],
    "replay of this routing (the local engine in one process; R3 with vLLM as the sampler)",
    ({ routerReplay = [] }, value) =>
      value === undefined ? routerReplay.length > 0 : value === "disabled" || routerReplay.some((one) => one === value),
  ),
  {
    outcome: "unsupported",
    keys: ["local.router_aux_loss"],
    requires: "local.processes=1",
    isMet: ({ config }, value) => value === 0 || config.local.processes === 1,
  },
  ability(
    ["model.train_experts"],
    "LoRA on experts",
    ({ loraTargets }, value, { config }) =>
      value === false || config.model.lora_rank === 0 || loraTargets.includes("experts"),
  ),
  ...(["top_p", "top_k", "min_p"] as const).map((name) =>
    ability(
      withOlderNames(under("rllm.rollout", `train.${name}`, `val.${name}`)),
      `sampling with ${name}`,
      ({ sampling }) => sampling.includes(name),
    ),
  ),
  {
    outcome: "unsupported",
    keys: under(correction, "tis_mode", "rs_mode"),
    ...asIs,
    isMet: ({ capabilities, config }) => capabilities.sampleLogprobs === "raw" || samplesAsIs(config),
  },
  {
    outcome: "no effect",
    keys: [`${correction}.bypass_mode`],
    ...asIs,
    isMet: ({ capabilities, config }) => capabilities.sampleLogprobs === "raw" || samplesAsIs(config),
  },
  {
    outcome: "unsupported",
    keys: ["rllm.async_training.enable"],
    when: "on an engine without a second copy of all weights, which cannot sample between an optimizer step and the next update of the sampler",
    requires: "a LoRA, or trigger_parameter_sync_step=1 with partial_rollout=true or staleness_threshold=0",
    isMet: ({ capabilities: { frozenSampler }, config: { model, rllm } }) => {
      const { mini_batch_size: batch, staleness_threshold: ahead, ...keys } = rllm.async_training;
      const runsAhead = Math.floor((1 + ahead) * batch) > batch;
      const waits = !frozenSampler[model.lora_rank === 0 ? "full" : "lora"];
      return !waits || (keys.trigger_parameter_sync_step === 1 && (keys.partial_rollout || !runsAhead));
    },
  },
];

// What the metadata of the schema says: the backends of a key, what is not supported yet, the names that exist, and `when` a key acts.

type EstimatorMap = Config["rllm"]["algorithm"]["estimator_map"];
type NamesIn = (value: unknown) => readonly unknown[];

const lossesOf = (script: ScriptFacts) => Object.keys(script.losses);
const estimatorsOf = (script: ScriptFacts) => Object.keys(script.estimators);

const ownNames: Readonly<Record<string, (script: ScriptFacts) => string[]>> = {
  [`${algorithm}.adv_estimator`]: estimatorsOf,
  [`${algorithm}.loss_fn`]: lossesOf,
};

const split = (value: unknown) => splitEstimatorMap((value ?? {}) as EstimatorMap);

export const metadataRules: readonly Rule[] = [
  ...[...configKeys.values()].flatMap(({ key, about }) => rulesAbout(key, about)),
  named(`${algorithm}.estimator_map`, `${algorithm}.adv_estimator`, (value) => Object.values(split(value).byRole)),
  named(`${algorithm}.estimator_map`, `${algorithm}.loss_fn`, (value) => Object.values(split(value).lossByRole)),
  named(`${algorithm}.loss_fn_map`, `${algorithm}.loss_fn`, (value) => Object.values(value ?? {})),
];

export const statedConditions: readonly Rule[] = [...configKeys.values()].flatMap(({ key, when }) =>
  when.map((condition) => needsValue(condition, [key])),
);

function rulesAbout(key: string, { backends, instead, later, options }: About): Rule[] {
  const rules: Rule[] = [];
  if (backends !== undefined) {
    const hint = instead === undefined ? {} : { hint: `use ${instead}` };
    const isMet: Rule["isMet"] = ({ backend }) => backends.includes(backend);
    rules.push({ outcome: "unsupported", keys: [key], isMet, byEngine: true, ...hint });
  }
  if (later !== undefined) {
    rules.push({ outcome: "unsupported", keys: [key], isMet: () => false, because: () => later, byEngine: true });
  }
  if (options !== undefined) rules.push(named(key, key, (value) => [value].flat()));
  return rules;
}

/** The names in a key's values are those that are built in for `like`, and those of the script. */
function named(key: string, like: string, namesIn: NamesIn): Rule {
  const { options = [], orModule = false } = configKeys.get(like)?.about ?? {};
  const known = (script: ScriptFacts | undefined) => [...options, ...(script ? (ownNames[like]?.(script) ?? []) : [])];
  const unknown = (value: unknown, names: readonly string[]) =>
    namesIn(value).find(
      (name): name is string => typeof name === "string" && !names.includes(name) && !(orModule && isModulePath(name)),
    );
  return {
    outcome: "invalid",
    keys: [key],
    isMet: ({ script, registered }, value) => unknown(value, [...known(script), ...registered]) === undefined,
    because({ script, registered }, value) {
      const names = [...known(script), ...registered];
      const name = unknown(value, names)!;
      const near = nearest(name, names, 2);
      const help = near.length > 0 ? `did you mean ${near.join(" or ")}?` : `built in: ${options.join(", ")}`;
      const which = value === name ? "the name" : `the name ${name}`;
      return `${which} is neither built in nor registered; ${help}`;
    },
  };
}
