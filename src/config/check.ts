/**
 * Checks what a user wrote against the schema, before and after composition, and suggests what to write instead: similar names, and Hone's
 * keys for the names of other systems.
 */
import { nameDistance, nearest } from "../base/text.ts";
import { ownValue } from "../base/values.ts";
import { elementToNode, isMistake, isSweep, type Override } from "./hydra/overrides.ts";
import { flagTable } from "./lightrft/flags.ts";
import { type Backend, backendFacts, backends } from "./schema/backends.ts";
import { configKeys, configSections, type KeyDescription, openSections } from "./schema.ts";
import {
  leafOf,
  type MapNode,
  type Mistake,
  type Node,
  type Origin,
  oneLine,
  parentOf,
  plain,
  putNode,
} from "./tree.ts";
import { verlNames } from "./verl-keys.ts";
import { positionText } from "./yaml.ts";

/** Collects the mistakes in a file or a script. Keys in verl's own sections are checked against verl's tree instead. */
export function checkLayer(layer: MapNode, backend: Backend, mistakes: Mistake[]): void {
  checkSection(layer, "", { backend, mistakes, adds: false });
}

/** Collects the mistakes in command-line overrides. Hydra's composition checks config groups (`rllm/backend=verl`). */
export function checkOverrides(
  overrides: readonly (Override | Mistake)[],
  backend: Backend,
  mistakes: Mistake[],
): void {
  for (const one of overrides) {
    if (isMistake(one)) mistakes.push(one);
    // Hydra's composition checks its own settings.
    else if (!/[/]|^hydra\./.test(one.key) && one.package === undefined && !isSweep(one.value)) {
      checkOverride(one, { backend, mistakes, adds: one.kind === "force-add" || one.kind === "add" });
    }
  }
}

interface Check {
  backend: Backend;
  mistakes: Mistake[];
  /** Whether unknown keys of verl's sections may be added. */
  adds: boolean;
}

function checkOverride({ kind, key, value, text }: Override, check: Check): void {
  const origin: Origin = { kind: "override", text };
  if (kind === "delete") {
    if (configKeys.has(key) || configSections.has(key) || isOwnKey(key, check)) return;
    complain(check, origin, `unknown key ${oneLine(key)}${didYouMean(key, { keys: true, sections: true })}`);
    return;
  }
  if (value === undefined || isSweep(value)) return;
  const root: MapNode = { kind: "map", origin, entries: [] };
  putNode(root, key, elementToNode(value, origin));
  checkSection(root, "", check);
}

function checkSection(node: Node, section: string, check: Check): void {
  if (node.kind !== "map") {
    // A section whose keys are all commented out reads as null.
    if (node.kind === "value" && (node.value === null || refers(node.value))) return;
    const what = section === "" ? "the configuration" : section;
    complain(check, node.origin, `${what} must be a section with keys, not ${showValue(plain(node))}`);
    return;
  }
  for (const { name, origin, node: child } of node.entries) {
    const path = section === "" ? name : `${section}.${name}`;
    const known = configKeys.get(path);
    // Otherwise a name containing a dot would be mistaken for a path.
    if (name.includes(".") && (known !== undefined || configSections.has(path))) {
      const nested = oneLine(name).replaceAll(".", ": ");
      complain(check, origin, `unknown key ${oneLine(name)}; nest the sections instead, one line each: ${nested}:`);
    } else if (known !== undefined) checkLeaf(known, child, child.origin, check.mistakes);
    else if (configSections.has(path)) checkSection(child, path, check);
    else if (!openSections.has(section) && !isOwnKey(path, check)) {
      const { path: written, node } = writtenPath(path, child);
      complain(check, origin, `unknown key ${oneLine(written)}${keyHelp(written, node)}`);
    }
  }
}

function keyHelp(path: string, node: Node): string {
  const owner = fieldName(path) === undefined ? ownerOf(path) : undefined;
  const ownHelp = owner === undefined ? "" : ` (${owner}'s own sections require rllm/backend=${owner})`;
  return didYouMean(path, node.kind === "map" ? { sections: true } : { keys: true }) + ownHelp;
}

/** The backend that alone has the section of a path. */
function ownerOf(path: string): string | undefined {
  const [root = ""] = path.split(".");
  if (configSections.has(root)) return undefined;
  return backends.find((backend) => backendFacts[backend].ownSections?.includes(root));
}

/** Whether the path is in one of the sections that the backend's own tree defines. */
function isOwnKey(path: string, { backend }: Check): boolean {
  const [root = ""] = path.split(".");
  return backendFacts[backend].ownSections?.includes(root) ?? false;
}

function complain({ mistakes }: Check, origin: Origin, message: string): void {
  mistakes.push({ where: positionText(origin), message });
}

/** An override contains the whole path, so any part of the path may be mistyped. */
function writtenPath(path: string, node: Node): { path: string; node: Node } {
  const [only, ...others] = node.kind === "map" ? node.entries : [];
  if (only === undefined || others.length > 0 || node.origin.kind !== "override") return { path, node };
  return writtenPath(`${path}.${only.name}`, only.node);
}

const refers = (value: unknown): boolean =>
  typeof value === "string" ? value.includes("${") : Array.isArray(value) && value.some(refers);

/** Checks a value. References and `???` are checked later, once their value is known. */
function checkLeaf(known: KeyDescription, node: Node, origin: Origin, mistakes: Mistake[]): void {
  const value = keyValue(known, node);
  if (refers(value) || value === "???") return;
  const message = checkValue(known, value);
  if (message !== undefined) mistakes.push({ where: positionText(origin), message });
}

/** The value of a key. A key that accepts text such as `off` or `1` gets it as spelled, not as a boolean or number. */
export function keyValue(known: KeyDescription, node: Node): unknown {
  const given = plain(node);
  if (node.kind !== "value" || given === null) return given;
  const text = node.text ?? (typeof given === "number" ? String(given) : undefined);
  if (typeof given === "string" && ownValue(known.about.aliases, given) !== undefined)
    return ownValue(known.about.aliases, given);
  return text !== undefined && (known.acceptsText || known.options.includes(text)) ? text : given;
}

/** Returns what is wrong with a value of a key, or undefined. */
export function checkValue(known: KeyDescription, value: unknown): string | undefined {
  const { success, error } = known.schema.safeParse(value);
  if (success) return undefined;
  const near = suggestOptions(value, known.options);
  const asList = known.type.startsWith("list of") && !Array.isArray(value) && typeof value === "string";
  const help = near.length > 0 ? `; did you mean ${near.join(", ")}?` : asList ? `; write [${oneLine(value)}]` : "";
  if (known.about.secret) return `${known.key} expects ${known.type} (the value is not shown)`;
  const custom = error.issues.find(({ code }) => code === "custom");
  const rule = custom === undefined ? "" : `; it ${custom.message}`;
  return `${known.key} expects ${known.type}, got ${showValue(value)}${rule}${help}`;
}

/** A value as a person would write it; values that cannot be written are shown by their type. */
export function showValue(value: unknown): string {
  if (typeof value === "string") return value === "" ? "empty text" : `"${oneLine(value, 60)}"`;
  if (typeof value === "number" || typeof value === "boolean" || value === null) return String(value);
  if (typeof value === "object") {
    try {
      const json = JSON.stringify(value);
      if (json !== undefined) return oneLine(json, 60);
    } catch {
      // For a cycle or a bigint, the type is enough.
    }
  }
  return `a ${typeof value}`;
}

// What to write instead of a name or a value that does not exist.

/** Kinds of names to suggest. */
export interface Among {
  keys?: boolean;
  sections?: boolean;
}

/** `lr` of `learning_rate`. */
const initialsOf = (leaf: string) => leaf.replaceAll(/(?<=[a-z0-9])[a-z0-9]+|_/g, "");

/**
 * Up to three known names similar to `name`, most likely first: names that differ by typing mistakes, the same name
 * elsewhere in the tree (`learning_rate` -> `training.learning_rate`), and names with these initials in the section.
 */
function suggestKeys(name: string, among: Among): string[] {
  const candidates = [...(among.keys ? configKeys.keys() : []), ...(among.sections ? configSections : [])];
  const scored = candidates.map((known) => {
    const leaf = nameDistance(leafOf(name), leafOf(known));
    const isHere = parentOf(known) === parentOf(name);
    if (isHere && initialsOf(leafOf(known)) === leafOf(name)) return { known, score: -1 };
    const elsewhere = isHere ? 0 : leaf === 0 ? 0.5 : 1.5;
    return { known, score: Math.min(nameDistance(name, known), leaf + elsewhere) };
  });
  const best = Math.min(...scored.map(({ score }) => score));
  return scored
    .filter(({ score }) => score < Number.POSITIVE_INFINITY && score <= best + 1)
    .sort((left, right) => left.score - right.score)
    .slice(0, 3)
    .map(({ known }) => known);
}

/** What the key is called here, `"; did you mean a or b?"`, or the keys of the deepest known section on the path. */
export function didYouMean(name: string, among: Among): string {
  const elsewhere = fieldName(name);
  if (elsewhere !== undefined) return `: ${elsewhere}`;
  const near = suggestKeys(name, among);
  if (near.length > 0) return `; did you mean ${near.join(" or ")}?`;
  let section = parentOf(name);
  while (section !== "" && !configSections.has(section)) section = parentOf(section);
  const prefix = section === "" ? "" : `${section}.`;
  const children = [...configKeys.keys(), ...configSections]
    .filter((known) => known.startsWith(prefix) && !known.slice(prefix.length).includes("."))
    .map((known) => known.slice(prefix.length));
  return `; ${section === "" ? "the configuration" : section} has ${children.join(", ")}`;
}

/** The listed options most similar to the invalid ones among the given values. */
function suggestOptions(given: unknown, options: readonly string[]): string[] {
  const values = Array.isArray(given) ? given : [given];
  return values
    .filter((value): value is string => typeof value === "string" && !options.includes(value))
    .flatMap((value) => nearest(value, options, 1));
}

/** By system: `theirs: ours`. A value may say more than a key. These answer before names of similar spelling. */
const systems: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  TRL: {
    model_name_or_path: "model.name",
    num_generations: "rllm.rollout.n",
    num_generations_eval: "rllm.rollout.n_val",
    per_device_train_batch_size:
      "data.train_batch_size, which counts tasks; local.micro_batch_tokens limits the tokens of a pass",
    per_device_eval_batch_size: "data.val_batch_size",
    generation_batch_size: "data.train_batch_size, which counts tasks",
    gradient_accumulation_steps:
      "training.num_minibatches, the optimizer steps per batch; Hone accumulates gradients by local.micro_batch_tokens",
    steps_per_generation: "training.num_minibatches",
    num_iterations: "training.ppo_epochs",
    num_train_epochs: "rllm.trainer.total_epochs",
    max_steps: "rllm.trainer.total_batches",
    max_completion_length: "data.max_response_length",
    max_prompt_length: "data.max_prompt_length",
    max_seq_length: "training.max_length",
    assistant_only_loss: "sft.train_on=all_assistant_messages, the default (false is all_tokens)",
    completion_only_loss: "sft.train_on; only the completion of a row with a prompt is learned",
    truncation_mode: "data.truncation (keep_start: right; keep_end: left)",
    dataset_name: "data.train_files",
    padding_free: "local.micro_batch_tokens; sequences are always packed without padding where the model allows it",
    packing: "local.micro_batch_tokens; sequences are always packed without padding where the model allows it",
    label_smoothing: "dpo.label_smoothing",
    beta: "rllm.algorithm.kl_beta (hone dpo: dpo.beta)",
    epsilon: "rllm.algorithm.eps_clip",
    epsilon_high: "rllm.algorithm.eps_clip_high",
    delta: "rllm.algorithm.clip_ratio_c",
    loss_type:
      "rllm.algorithm.loss_fn (dapo: loss_agg_mode=token-mean; dr_grpo: norm_adv_by_std_in_grpo=false), sft.loss_type or dpo.loss_type",
    importance_sampling_level: "rllm.algorithm.loss_fn (sequence: gspo)",
    scale_rewards: "rllm.algorithm.norm_adv_by_std_in_grpo",
    reward_weights: "rllm.reward.model_weights",
    mask_truncated_completions: "rllm.mask_truncated_samples",
    vllm_importance_sampling_correction: "rllm.algorithm.rollout_correction.tis_mode",
    vllm_importance_sampling_cap: "rllm.algorithm.rollout_correction.tis_cap",
    use_vllm: "local.sampler.type=vllm",
    vllm_mode: "local.sampler.type=vllm",
    vllm_server_base_url: "local.sampler.url",
    vllm_gpu_memory_utilization: "local.sampler.memory_share",
    vllm_enable_sleep_mode: "local.sampler.sleep",
    bf16: "local.dtype=bfloat16",
    torch_dtype: "local.dtype",
    lr_scheduler_type: "training.lr_schedule",
    warmup_ratio: "training.warmup_steps_ratio",
    warmup_steps: "rllm.algorithm.warmup_steps",
    adam_beta1: "training.beta1",
    adam_beta2: "training.beta2",
    adam_epsilon: "training.eps",
    lora_r: "model.lora_rank",
    output_dir: "rllm.trainer.run_dir",
    run_name: "rllm.trainer.experiment_name",
    report_to: "rllm.trainer.logger",
    save_steps: "rllm.trainer.save_freq",
    eval_steps: "rllm.trainer.test_freq",
    save_total_limit: "training.max_ckpt_num",
    metric_for_best_model: "training.best_metric",
    resume_from_checkpoint: "training.resume_from_path, with training.resume_mode=path",
  },
  OpenRLHF: {
    pretrain: "model.name",
    reward_pretrain: "rllm.reward.model",
    critic_pretrain: "rllm.critic.model",
    remote_rm_url: "rllm.reward.remote_url",
    actor_learning_rate: "training.learning_rate",
    critic_learning_rate: "rllm.critic.learning_rate",
    rollout_batch_size: "data.train_batch_size",
    micro_train_batch_size: "local.micro_batch_tokens",
    n_samples_per_prompt: "rllm.rollout.n",
    prompt_max_len: "data.max_prompt_length",
    generate_max_len: "data.max_response_length",
    max_len: "training.max_length",
    max_epochs: "training.ppo_epochs",
    num_episodes: "rllm.trainer.total_epochs",
    max_norm: "training.max_grad_norm",
    l2: "training.weight_decay",
    advantage_estimator: "rllm.algorithm.adv_estimator",
    init_kl_coef: "rllm.algorithm.kl_beta",
    lambd: "rllm.algorithm.lam",
    eps_clip_low_high: "rllm.algorithm.eps_clip and eps_clip_high",
    dual_clip: "rllm.algorithm.clip_ratio_c",
    dynamic_filtering: "rllm.dynamic_sampling.enable",
    zero_stage: "local.sharding",
    adam_offload: "local.offload_optimizer",
    vllm_tensor_parallel_size: "local.sampler.tensor_parallel",
    vllm_enable_sleep: "local.sampler.sleep",
    ring_attn_size: "local.sequence_parallel",
    save_path: "rllm.trainer.run_dir",
  },
  LightRFT: { ...renamedFlags(), engine_type: "local.sampler.type" },
  "the Tinker cookbook": {
    model_name: "model.name",
    groups_per_batch: "data.train_batch_size",
    max_tokens: "data.max_response_length",
    train_on_what: "sft.train_on",
    dpo_beta: "dpo.beta",
    load_checkpoint_path: "training.start_from",
    num_epochs: "rllm.trainer.total_epochs",
    kl_penalty_coef: "rllm.algorithm.kl_beta",
    num_substeps: "training.num_minibatches",
    eval_every: "rllm.trainer.test_freq",
    save_every: "rllm.trainer.save_freq",
    log_path: "rllm.trainer.run_dir",
    wandb_project: "rllm.trainer.project_name",
    base_url: "tinker_base_url",
    remove_constant_reward_groups: "rllm.rejection_sample.filter_uniform_groups",
  },
  rLLM: {
    tokenize_and_mask_method: "sft.train_on (cumulative: all_assistant_messages; stepwise: last_assistant_message)",
    "rllm.data.train_files": "data.train_files",
    "rllm.data.val_files": "data.val_files",
    "data.max_seq_length": "data.max_length",
    "data.rllm.tokenize_and_mask_method":
      "sft.train_on (cumulative: all_assistant_messages; stepwise: last_assistant_message)",
  },
  verl: {
    "optim.lr": "training.learning_rate",
    partial_pretrain: "model.name",
    micro_batch_size_per_gpu: "local.micro_batch_tokens",
    ppo_mini_batch_size: "training.num_minibatches, the optimizer steps per batch",
    ppo_micro_batch_size_per_gpu: "local.micro_batch_tokens",
    kl_loss_coef: "rllm.algorithm.kl_beta",
    clip_ratio: "rllm.algorithm.eps_clip",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "training.num_minibatches, the optimizer steps per batch",
  },
};

/** LightRFT's flags whose value a key of another name gets. */
function renamedFlags(): Record<string, string> {
  const renamed = flagTable.flatMap(([flag, { sets }]) =>
    typeof sets === "string" && leafOf(sets) !== flag ? [[flag, sets]] : [],
  );
  return Object.fromEntries(renamed);
}

/** Names of a system and what they are here, in the order of the table. */
export const namesOf = (system: string): readonly (readonly [theirs: string, ours: string])[] =>
  Object.entries(ownValue(systems, system) ?? {});

/** The names of all systems, for tests. */
export const fieldNames = Object.keys(systems).flatMap((system) => namesOf(system));

/** `"it is TRL's name for rllm.rollout.n"`; undefined if no other system has the name, or it is in a section of Hone. */
function fieldName(path: string): string | undefined {
  const section = parentOf(path);
  const common = verlNames.get(path);
  if (common !== undefined) return `it is verl's name for ${common}; set that key instead`;
  if (configSections.has(section)) return undefined;
  const leaf = leafOf(path);
  for (const [system, names] of Object.entries(systems)) {
    const ours = ownValue(names, path) ?? ownValue(names, leaf);
    if (ours !== undefined) return `it is the name in ${system} for ${ours}`;
  }
  return undefined;
}
