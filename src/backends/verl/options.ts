/** The options of verl: what its workers and rollout servers must have, and the rules of its settings. */
import { isDeepStrictEqual } from "node:util";
import { UserError } from "../../base/errors.ts";
import { hasNvidiaGpu } from "../../base/python.ts";
import { isObject } from "../../base/values.ts";
import { backendFacts } from "../../config/schema/backends.ts";
import { layerOf, type Origin, valueAt } from "../../config/tree.ts";
import { currentVerlNames, olderVerlNames, verlNames } from "../../config/verl-keys.ts";
import type { ComposedTree, EngineHooks } from "../backend.ts";
import type { Capabilities, Finding } from "../engine.ts";

// Keys with two names: the values that verl's workers must have, compared with the values that they have.

const actor = "actor_rollout_ref.actor";
const algorithm = "rllm.algorithm";

/** The value of each key under its other name, by verl's name. Includes the rules for the clip range and KL. */
export function expectedValues({ tree, origins }: ComposedTree): ReadonlyMap<string, unknown> {
  const at = (path: string) => valueAt(tree, path) ?? null;
  const [clip, kl, steps] = [at(`${algorithm}.eps_clip`), at(`${algorithm}.kl_beta`), at("rllm.trainer.total_batches")];
  const useKl = origins.get(`${actor}.use_kl_loss`);
  const isKlGiven = useKl !== undefined && useKl.kind !== "synced" && layerOf(useKl) > 0;
  const rules: [string, unknown][] = [
    [`${actor}.clip_ratio`, clip],
    [`${actor}.clip_ratio_low`, clip],
    [`${actor}.clip_ratio_high`, at(`${algorithm}.eps_clip_high`) ?? clip],
    [`${actor}.use_kl_loss`, isKlGiven ? null : Number(kl) > 0],
    ["trainer.total_training_steps", Number(steps) > 0 ? steps : null],
  ];
  // The driver gets the model's folder instead of its name.
  const rows = [...olderVerlNames, ...currentVerlNames].filter(([, common]) => common !== "model.name");
  const values = rows.map(([native, common]): [string, unknown] => [native, at(common)]);
  // With null, verl uses its own value. Keys that this version of verl does not have are not in the tree.
  return new Map([...values, ...rules].filter(([path, value]) => value !== null && valueAt(tree, path) !== undefined));
}

/** The values in verl's processes, by verl's name. */
export interface WorkerValues {
  values: Readonly<Record<string, unknown>>;
  missing: readonly string[];
  /** The process that each value was read from. */
  held: Readonly<Record<string, string>>;
}

export function compareValues(
  expected: ReadonlyMap<string, unknown>,
  { values, missing, held }: WorkerValues,
): Finding {
  const different = [...expected].filter(
    ([path, value]) => !missing.includes(path) && !isDeepStrictEqual(values[path], value),
  );
  const name = "settings";
  if (different.length > 0) {
    const shown = different.map(
      ([path, value]) => `${path} is ${JSON.stringify(values[path])}, not ${JSON.stringify(value)}`,
    );
    return { name, detail: shown.join("; "), fix: "please report it with the command and the version of verl" };
  }
  const present = [...expected.keys()].filter((path) => !missing.includes(path));
  const inWorkers = present.filter((path) => held[path] === "worker").length;
  const absent = missing.length === 0 ? "" : `; this version of verl has no ${missing.join(", ")}`;
  return {
    name,
    detail: `${present.length} values with two names are the same in verl (${inWorkers} read from a worker)${absent}`,
  };
}

// Decides whether verl's own rollout servers sample or a vLLM server that Hone starts.

const rollout = "actor_rollout_ref.rollout";

/** verl's servers that need GPUs. */
const onGpus = ["vllm", "sglang", "trtllm", "hf"];

const usesGpu = (tree: Tree): boolean => hasNvidiaGpu() && valueAt(tree, "trainer.device") !== "cpu";

/** Whether verl's own rollout servers sample: on GPUs, and if the user has registered servers under another name. */
function samplesWithVerl(tree: Tree): boolean {
  const name = valueAt(tree, `${rollout}.name`);
  return usesGpu(tree) || (typeof name === "string" && name !== "???" && !onGpus.includes(name));
}

/** The kind of HTTP routes that the servers have. */
const rolloutKind = (tree: Tree): "vllm" | "sglang" =>
  valueAt(tree, `${rollout}.name`) === "sglang" ? "sglang" : "vllm";

/**
 * @param ranks verl's workers
 * @throws UserError when verl's servers could not start, or Hone could not sample from them
 */
function checkRollouts(tree: Tree, ranks: number): void {
  const at = (name: string) => valueAt(tree, `${rollout}.${name}`);
  const name = at("name");
  if (name === "trtllm" || name === "hf") {
    throw new UserError(`${rollout}.name=${name}: Hone can sample only from verl's vLLM and SGLang servers`, {
      hint: `${rollout}.name=vllm`,
    });
  }
  if (at("disaggregation.enabled") === true) {
    throw new UserError(`${rollout}.disaggregation.enabled=true: Hone does not support separate prefill servers`, {
      hint: "set it to false",
    });
  }
  if (valueAt(tree, "actor_rollout_ref.hybrid_engine") === false) {
    if (Number(at("nnodes")) > 0) return;
    throw new UserError("actor_rollout_ref.hybrid_engine=false: verl's rollout servers need separate nodes", {
      hint: `set ${rollout}.nnodes=1 and ${rollout}.n_gpus_per_node, or rllm.async_training.enable=false to share the workers' nodes`,
    });
  }
  const sizes = ["tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size"];
  const each = sizes.reduce((product, size) => product * Number(at(size) ?? 1), 1);
  if (ranks % each === 0) return;
  throw new UserError(
    `a rollout server uses ${each} GPUs (${rollout}.${sizes[0]} times the other sizes), which does not divide verl's ${ranks} ${ranks === 1 ? "worker" : "workers"}`,
    { hint: `${rollout}.${sizes[0]}=1, or change trainer.n_gpus_per_node` },
  );
}

// The options of the verl engine, from a composed configuration.

type Tree = Record<string, unknown>;

/** verl knows fewer schedules, and Hone sets the learning rate of each step. */
const schedule = "actor_rollout_ref.actor.optim.lr_scheduler_type";

export interface VerlEngineOptions {
  /** The model's name, as the user gave it. */
  name: string;
  /** verl's whole configuration for its workers, without the model's folder. */
  config: Tree;
  /** The arguments of `ray.init`; without `address`, Hone starts a cluster. */
  ray: Tree;
  /** The values that the workers must have, by verl's names. */
  expected: ReadonlyMap<string, unknown>;
  /** Number of workers on all nodes. */
  ranks: number;
  usesGpu: boolean;
  /** The kind of verl's rollout servers, if they sample. */
  rollouts: "vllm" | "sglang" | undefined;
  hooks: Pick<EngineHooks, "logFile" | "onStatus" | "warn" | "media">;
}

/** @throws UserError when verl's rollout servers cannot be used as they are set */
export function verlEngineOptions(
  composed: ComposedTree,
  cores: number,
  hooks: VerlEngineOptions["hooks"] = {},
): VerlEngineOptions {
  const { config, tree, origins } = composed;
  const trainer = sectionAt(tree, "trainer");
  const requested = Number(trainer.n_gpus_per_node);
  const onGpu = usesGpu(tree);
  const perNode = onGpu ? requested : ranksPerNode(requested, origins.get("trainer.n_gpus_per_node"), cores);
  if (perNode !== requested) {
    hooks.warn?.(
      `trainer.n_gpus_per_node: the default of ${requested} workers is lowered to ${perNode}, one for each core, because this machine has no GPU that verl uses`,
    );
  }
  const ranks = Number(trainer.nnodes) * perNode;
  const rollouts = samplesWithVerl(tree) ? rolloutKind(tree) : undefined;
  if (rollouts) checkRollouts(tree, ranks);
  const own = Object.fromEntries(Object.entries(tree).filter(([name]) => isVerl(name)));
  return {
    name: config.model.name,
    config: merged(own, {
      // As on the other backends: log-probabilities of the model itself, before temperature and filters.
      actor_rollout_ref: {
        rollout: { logprobs_mode: "raw_logprobs", ...(onGpu ? {} : naiveWeights(composed)) },
        ...(valueAt(tree, schedule) === undefined ? {} : { actor: { optim: { lr_scheduler_type: "constant" } } }),
      },
      trainer: { n_gpus_per_node: perNode },
      // Hone asks the teachers.
      distillation: { enabled: false },
    }),
    ray: withoutNulls(sectionAt(tree, "ray_kwargs.ray_init")),
    expected: expectedValues(composed),
    ranks,
    usesGpu: onGpu,
    rollouts,
    hooks,
  };
}

/** Composition chooses nccl for asynchronous training, which needs GPUs. A value that the user set is left to the driver. */
function naiveWeights({ origins }: ComposedTree): Tree {
  const isChosen = origins.get("actor_rollout_ref.rollout.checkpoint_engine.backend")?.kind === "synced";
  return isChosen ? { checkpoint_engine: { backend: "naive" } } : {};
}

/** A critic starts from the run's own model. */
export const withModel = (config: Tree, folder: string): Tree =>
  merged(config, {
    actor_rollout_ref: { model: { path: folder } },
    critic: { model: { path: folder, tokenizer_path: folder } },
  });

const isVerl = (name: string) => backendFacts.verl.ownSections?.includes(name) ?? false;

/** Without a GPU, verl's default of 8 workers per node is lowered to the number of cores. */
function ranksPerNode(requested: number, origin: Origin | undefined, cores: number): number {
  const isDefault = origin === undefined || layerOf(origin) === 0;
  return isDefault ? Math.min(requested, cores) : requested;
}

/** Removes keys that are null, because in verl null means that an argument is not passed. */
function withoutNulls(section: Tree): Tree {
  const given = Object.entries(section).filter(([, value]) => value !== null);
  return Object.fromEntries(given.map(([name, value]) => [name, isObject(value) ? withoutNulls(value) : value]));
}

const sectionAt = (tree: Tree, path: string) => (valueAt(tree, path) ?? {}) as Tree;

/** A copy of `base` with the values of `over`. */
function merged(base: Tree, over: Tree): Tree {
  const copy = { ...base };
  for (const [name, value] of Object.entries(over)) {
    copy[name] = isObject(value) ? merged((base[name] ?? {}) as Tree, value) : value;
  }
  return copy;
}

// The keys of verl's own tree that take effect. The others belong to verl's trainer, which Hone replaces.

/** @param names separated by white space */
const under = (section: string, names: string) =>
  names
    .trim()
    .split(/\s+/)
    .map((name) => `${section}.${name}`);

/** Keys, and sections with all their keys. */
const used: readonly string[] = [
  ...verlNames.keys(),
  "actor_rollout_ref.model",
  "actor_rollout_ref.ref",
  "actor_rollout_ref.nccl_timeout",
  ...under(
    "actor_rollout_ref.actor",
    `
    strategy fsdp_config megatron veomni torchtitan mindspeed optim checkpoint profiler
    ppo_micro_batch_size ppo_micro_batch_size_per_gpu use_dynamic_bsz ppo_max_token_len_per_gpu
    use_torch_compile use_remove_padding use_fused_kernels ulysses_sequence_parallel_size
    entropy_from_logits_with_chunking entropy_from_logits_chunk_size entropy_checkpointing
    pad_to_length qat
  `,
  ),
  ...under(
    "critic",
    `
    strategy fsdp fsdp_config megatron veomni torchtitan mindspeed optim model ppo_micro_batch_size
    ppo_micro_batch_size_per_gpu use_dynamic_bsz ppo_max_token_len_per_gpu forward_micro_batch_size
    forward_micro_batch_size_per_gpu forward_max_token_len_per_gpu ulysses_sequence_parallel_size
    checkpoint profiler
  `,
  ),
  // The actor's workers read these for outputs without gradients.
  ...under(
    "actor_rollout_ref.rollout",
    `
    log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz
    log_prob_max_token_len_per_gpu
  `,
  ),
  // Composition reads these.
  ...under("actor_rollout_ref.rollout", "do_sample val_kwargs.do_sample"),
  ...under("trainer", "nnodes n_gpus_per_node device"),
  "ray_kwargs.ray_init",
  "model_engine",
];

/** Additional keys, if verl's own rollout servers sample. */
const usedByServers: readonly string[] = [
  "actor_rollout_ref.hybrid_engine",
  ...under(
    "actor_rollout_ref.rollout",
    `
    name mode nnodes n_gpus_per_node dtype load_format layered_summon seed full_determinism
    tensor_model_parallel_size data_parallel_size pipeline_model_parallel_size expert_parallel_size
    moe_tensor_parallel_size gpu_memory_utilization free_cache_engine enable_sleep_mode
    enforce_eager cudagraph_capture_sizes max_model_len max_num_seqs max_num_batched_tokens
    enable_chunked_prefill enable_prefix_caching scheduling_policy quantization
    quantization_config_file qat mtp engine_kwargs checkpoint_engine disable_log_stats prometheus
    profiler disaggregation custom
  `,
  ),
];

/** Parts of the used sections that Hone sets itself, with the key that sets them. */
const replaced: Readonly<Record<string, string>> = {
  "actor_rollout_ref.actor.optim.betas": "set training.beta1 and training.beta2",
  "critic.optim.betas": "set training.beta1 and training.beta2",
  "critic.optim.weight_decay": "set training.weight_decay",
  "critic.optim.clip_grad": "set training.max_grad_norm",
  "actor_rollout_ref.rollout.logprobs_mode": "the servers report the model's own log-probabilities",
  "critic.model.path": "the critic starts from model.name",
  "critic.model.tokenizer_path": "the critic starts from model.name",
};

const isIn = (key: string, section: string) => key === section || key.startsWith(`${section}.`);

/**
 * Why a key of verl's own tree has no effect; undefined if it has.
 * @param tree the whole configuration
 */
export function reasonUnused(key: string, tree: Readonly<Record<string, unknown>>): string | undefined {
  const instead = Object.entries(replaced).find(([section]) => isIn(key, section))?.[1];
  if (instead !== undefined) return `Hone's trainer sets it; ${instead}`;
  if (used.some((section) => isIn(key, section))) return undefined;
  if (samplesWithVerl(tree)) {
    if (usedByServers.some((section) => isIn(key, section))) return undefined;
  } else if (isIn(key, "actor_rollout_ref.rollout")) {
    return "it is not used, because Hone's own vLLM server samples";
  }
  if (isIn(key, "data")) return "the experiment's script reads the data";
  return "it belongs to verl's own trainer, which Hone's trainer replaces";
}

// The capabilities of verl's workers together with inference servers.

export const capabilities: Capabilities = {
  engine: "verl",
  sampleLogprobs: "raw",
  adapters: ["lora", "full", "none"],
  loraTargets: ["attn", "mlp"],
  outputs: ["logprobs", "entropy", "values", "concentration"],
  sampling: [
    "top_p",
    "top_k",
    "min_p",
    "stop_ids",
    "stop_strings",
    "seed",
    "prompt_logprobs",
    "top_logprobs",
    "abort",
    "tokens_streamed",
  ],
  multiplePolicies: false,
  images: true,
  otherModels: false,
  frozenSampler: { lora: true, full: true },
  exports: ["adapter", "merged"],
};
