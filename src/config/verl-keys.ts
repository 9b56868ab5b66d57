/**
 * The keys of verl's own tree that Hone knows: what each is called in Hone, its type, and how both names get one value
 * (the reference document's "Bidirectional config sync"). docs/decisions/verl-sync.md explains what Hone does where rLLM's
 * code differs from the document. All other keys come from verl's own tree.
 */
import { isDeepStrictEqual } from "node:util";
import { z } from "zod";
import { count, share, text } from "./schema/about.ts";
import { type Backend, backendFacts } from "./schema/backends.ts";
import {
  copyKey,
  derive,
  isExplicit,
  type KeyPair,
  layerAt,
  type SyncRule,
  type SyncTree,
  sameValue,
  warnOfNative,
} from "./synonyms.ts";
import { layerOf, type Origin, valueAt, verlFolder } from "./tree.ts";

interface VerlKey {
  /** verl's name. */
  native: string;
  /** Hone's name of the same setting. */
  common?: string;
  /** Whether both names always have the same value, and whether verl's is the older name, so setting it warns. */
  same?: "older" | "current";
  /** Changes this key or its other name. Applied only if verl's tree has this key, unless its name is older. */
  rule?: SyncRule;
  /** For the reference page and the JSON Schema. Without a description, it is that of the common name. */
  type?: z.ZodType;
}

const older = (native: string, common: string, type: z.ZodType): VerlKey => ({
  native,
  common,
  same: "older",
  rule: sameValue([native, common], true),
  type,
});

const current = (native: string, common: string): VerlKey => ({
  native,
  common,
  same: "current",
  rule: sameValue([native, common]),
});

const schedule = (native: string): VerlKey => {
  const common = "rllm.algorithm.lr_schedule";
  return { native, common, rule: sameValue([native, common], true) };
};

const actor = "actor_rollout_ref.actor";
const rollout = "actor_rollout_ref.rollout";
const asyncFlag = "rllm.async_training.enable";
const number = z.number().nullable();

/** In the order in which the rules are applied: sizes come first, because other defaults refer to them. */
const table: readonly VerlKey[] = [
  // Also keys of Hone on every backend.
  current("data.train_batch_size", "rllm.data.train_batch_size"),
  current("data.max_prompt_length", "rllm.data.max_prompt_length"),
  current("data.max_response_length", "rllm.data.max_response_length"),

  older("algorithm.adv_estimator", "rllm.algorithm.adv_estimator", text),
  older("algorithm.norm_adv_by_std_in_grpo", "rllm.algorithm.norm_adv_by_std_in_grpo", z.boolean()),
  older("algorithm.rollout_correction.bypass_mode", "rllm.algorithm.rollout_correction.bypass_mode", z.boolean()),
  older("algorithm.rollout_correction.rollout_is", "rllm.algorithm.rollout_correction.tis_mode", text.nullable()),
  older("algorithm.rollout_correction.rollout_is_threshold", "rllm.algorithm.rollout_correction.tis_cap", z.number()),
  older("actor_rollout_ref.actor.kl_loss_coef", "rllm.algorithm.kl_beta", number),
  older("actor_rollout_ref.actor.policy_loss.loss_mode", "rllm.algorithm.loss_fn", text.nullable()),
  older("actor_rollout_ref.actor.loss_agg_mode", "rllm.algorithm.loss_agg_mode", text.nullable()),
  older("actor_rollout_ref.actor.optim.lr_warmup_steps", "rllm.algorithm.warmup_steps", count),
  older("actor_rollout_ref.actor.optim.lr_warmup_steps_ratio", "rllm.algorithm.warmup_steps_ratio", share),
  older("actor_rollout_ref.actor.clip_ratio_high", "rllm.algorithm.eps_clip_high", number),
  older("actor_rollout_ref.rollout.n", "rllm.rollout.n", count),
  older("actor_rollout_ref.rollout.val_kwargs.n", "rllm.rollout.n_val", count),
  older("actor_rollout_ref.rollout.temperature", "rllm.rollout.train.temperature", z.number()),
  older("actor_rollout_ref.rollout.top_p", "rllm.rollout.train.top_p", z.number()),
  older("actor_rollout_ref.rollout.top_k", "rllm.rollout.train.top_k", count),
  older("actor_rollout_ref.rollout.response_length", "rllm.rollout.train.max_tokens", count),
  older("actor_rollout_ref.rollout.val_kwargs.temperature", "rllm.rollout.val.temperature", z.number()),
  older("actor_rollout_ref.rollout.val_kwargs.top_p", "rllm.rollout.val.top_p", z.number()),
  older("actor_rollout_ref.rollout.val_kwargs.top_k", "rllm.rollout.val.top_k", count),
  older(
    "critic.model.path",
    "rllm.critic.model",
    text.describe(
      "verl's name for rllm.critic.model, which this backend does not support: its critic starts from model.name.",
    ),
  ),
  older("trainer.save_freq", "rllm.trainer.save_freq", count),
  older("trainer.test_freq", "rllm.trainer.test_freq", count),
  older("trainer.val_before_train", "rllm.trainer.val_before_train", z.boolean()),
  older("trainer.val_only", "rllm.trainer.val_only", z.boolean()),
  older("trainer.total_epochs", "rllm.trainer.total_epochs", count),
  older("trainer.logger", "rllm.trainer.logger", z.array(text)),
  older("trainer.project_name", "rllm.trainer.project_name", text),
  older("trainer.experiment_name", "rllm.trainer.experiment_name", text),

  // Settings of the model, the optimizer and the losses.
  current("actor_rollout_ref.model.path", "model.name"),
  current("actor_rollout_ref.model.lora_rank", "model.lora_rank"),
  current("actor_rollout_ref.model.lora_alpha", "model.lora_alpha"),
  current("actor_rollout_ref.actor.optim.lr", "training.learning_rate"),
  current("actor_rollout_ref.actor.optim.weight_decay", "training.weight_decay"),
  current("actor_rollout_ref.actor.optim.clip_grad", "training.max_grad_norm"),
  current("actor_rollout_ref.actor.ppo_epochs", "training.ppo_epochs"),
  current("actor_rollout_ref.actor.entropy_coeff", "rllm.algorithm.entropy_coeff"),
  current("actor_rollout_ref.actor.clip_ratio_c", "rllm.algorithm.clip_ratio_c"),
  current("actor_rollout_ref.actor.loss_scale_factor", "rllm.algorithm.loss_scale_factor"),
  current("actor_rollout_ref.actor.tau_pos", "rllm.algorithm.policy_loss.tau_pos"),
  current("actor_rollout_ref.actor.tau_neg", "rllm.algorithm.policy_loss.tau_neg"),
  ...["clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio", "ppo_kl_coef"].map((name) =>
    current(`actor_rollout_ref.actor.policy_loss.${name}`, `rllm.algorithm.policy_loss.${name}`),
  ),
  current("algorithm.lam", "rllm.algorithm.lam"),
  current("critic.optim.lr", "rllm.critic.learning_rate"),
  current("trainer.resume_mode", "training.resume_mode"),
  current("trainer.resume_from_path", "training.resume_from_path"),

  // Each of verl's training engines has one of these.
  { ...schedule("actor_rollout_ref.actor.optim.lr_scheduler_type"), type: text },
  schedule("actor_rollout_ref.actor.optim.lr_decay_style"),
  schedule("actor_rollout_ref.actor.optim.decay_type"),
  {
    native: "trainer.total_training_steps",
    common: "rllm.trainer.total_batches",
    rule: syncTotalSteps,
    type: count
      .nullable()
      .describe("verl's name for rllm.trainer.total_batches; set that key instead. null corresponds to -1 there."),
  },
  {
    native: "actor_rollout_ref.actor.use_kl_loss",
    common: "rllm.algorithm.kl_beta",
    rule: deriveKlLoss,
    type: z.boolean().describe("Add the KL to the loss; derived from rllm.algorithm.kl_beta > 0 unless set."),
  },
  { native: "actor_rollout_ref.rollout.enable_rollout_routing_replay", rule: deriveRoutingReplay },
  {
    native: "actor_rollout_ref.actor.clip_ratio",
    common: "rllm.algorithm.eps_clip",
    rule: syncClipRatio,
    type: number,
  },
  { native: "actor_rollout_ref.actor.clip_ratio_low", common: "rllm.algorithm.eps_clip", type: number },
  {
    native: "actor_rollout_ref.rollout.do_sample",
    rule: (tree) => coerceGreedy(tree, rollout, "rllm.rollout.train.temperature"),
    type: z.boolean().describe("false sets the temperature to 0 in training."),
  },
  {
    native: "actor_rollout_ref.rollout.val_kwargs.do_sample",
    rule: (tree) => coerceGreedy(tree, `${rollout}.val_kwargs`, "rllm.rollout.val.temperature"),
    type: z.boolean().describe("false sets the temperature to 0 in validation."),
  },
  // Generating while training needs separate engines; alternating between them shares one engine.
  { native: "actor_rollout_ref.hybrid_engine", rule: coerceEngine },
  { native: "actor_rollout_ref.rollout.checkpoint_engine.backend", rule: coerceWeightTransfer },
  {
    native: "actor_rollout_ref.actor.ppo_mini_batch_size",
    rule: coerceIfAsync(`${actor}.ppo_mini_batch_size`, "rllm.async_training.mini_batch_size"),
  },
  {
    native: "async_training.partial_rollout",
    rule: coerceIfAsync("async_training.partial_rollout", "rllm.async_training.partial_rollout"),
  },

  { native: "distillation.teacher_models", rule: dropShippedTeachers },

  // verl alone has these.
  { native: "actor_rollout_ref.rollout.mode", type: text.describe("Rollout mode; the trainer requires async.") },
  {
    native: "actor_rollout_ref.rollout.agent.num_workers",
    type: count.min(0).describe("Number of verl's own agent workers; 0, because Hone runs the agents."),
  },
  {
    native: "actor_rollout_ref.rollout.calculate_log_probs",
    type: z.boolean().describe("Return the sampler's log-probabilities, which rollout correction needs."),
  },
  {
    native: "actor_rollout_ref.actor.use_rollout_log_probs",
    type: z.boolean().describe("Make the actor use the sampler's log-probabilities if bypass_mode is on."),
  },
  {
    native: "data.gen_batch_size",
    type: count.describe(
      "Number of tasks drawn for a batch. Hone does not read it: the experiment's script reads the data.",
    ),
  },
  {
    native: "data.return_multi_modal_inputs",
    type: z
      .boolean()
      .describe(
        "Keep images in the data sent to workers. Hone does not read it: the experiment's script reads the data.",
      ),
  },
];

const named = table.filter((key): key is VerlKey & { common: string } => key.common !== undefined);

const withSame = (same: VerlKey["same"]) =>
  named.filter((key) => key.same === same).map(({ native, common }): KeyPair => [native, common]);

/** verl's names that a reader should replace, with the names to set instead. Both always have the same value. */
export const olderVerlNames: readonly KeyPair[] = withSame("older");

/** Both names are current and always have the same value. */
export const currentVerlNames: readonly KeyPair[] = withSame("current");

/** Every name of verl with Hone's name, also those whose values differ. */
export const verlNames: ReadonlyMap<string, string> = new Map(named.map(({ native, common }) => [native, common]));

/** The types of keys that only verl's tree has. Defaults are verl's, see config/verl and config/rllm/backend/verl.yaml. */
export const verlTypes: Readonly<Record<string, z.ZodType>> = Object.fromEntries(
  table.flatMap(({ native, common, type }) => {
    if (type === undefined) return [];
    const isDescribed = type.description !== undefined;
    return [[native, isDescribed ? type : type.describe(`verl's name for ${common}; set that key instead.`)]];
  }),
);

const verlRules: readonly SyncRule[] = table.flatMap(({ native, same, rule }) => {
  if (rule === undefined || same === "older") return rule ?? [];
  return (tree) => {
    if (tree.node(native) !== undefined) rule(tree);
  };
});

/** rLLM's 0 or less (train by epochs) corresponds to verl's null. */
function syncTotalSteps(tree: SyncTree): void {
  const [native, common]: KeyPair = ["trainer.total_training_steps", "rllm.trainer.total_batches"];
  const forVerl = () => {
    const steps = tree.value(common);
    return typeof steps === "number" && steps <= 0 ? null : (steps ?? null);
  };
  const [ownLayer, commonLayer] = [layerAt(tree, native), layerAt(tree, common)];
  if (ownLayer > commonLayer) {
    warnOfNative(tree, [native, common]);
    copyKey(tree, common, native);
    if (tree.value(native) === null) derive(tree, common, -1, native);
    return;
  }
  if (ownLayer > 0) {
    const differ = ownLayer === commonLayer && tree.value(native) !== forVerl();
    if (differ) tree.warn("conflict", [native, common], `${native} and ${common} differ; ${common} wins`);
    else warnOfNative(tree, [native, common]);
  }
  derive(tree, native, forVerl(), common);
}

function deriveKlLoss(tree: SyncTree): void {
  const [flag, beta] = [`${actor}.use_kl_loss`, "rllm.algorithm.kl_beta"];
  if (isExplicit(tree, flag)) return;
  const weight = tree.value(beta);
  derive(tree, flag, typeof weight === "number" && weight > 0, beta);
}

/** With R3, the sampler records the routing, which verl enables by a separate flag. */
function deriveRoutingReplay(tree: SyncTree): void {
  const replay = "rllm.algorithm.router_replay";
  if (tree.value(replay) === "R3") derive(tree, `${rollout}.enable_rollout_routing_replay`, true, replay);
}

/** eps_clip is the lower bound and, unless eps_clip_high is set, also the upper bound. */
function syncClipRatio(tree: SyncTree): void {
  const [both, low, high] = [`${actor}.clip_ratio`, `${actor}.clip_ratio_low`, `${actor}.clip_ratio_high`];
  const [eps, epsHigh] = ["rllm.algorithm.eps_clip", "rllm.algorithm.eps_clip_high"];
  const common = layerAt(tree, eps);
  const given = [low, both].filter((path) => isExplicit(tree, path));
  const native = given.find((path) => layerAt(tree, path) > common);
  if (native !== undefined) {
    for (const path of given) warnOfNative(tree, [path, eps]);
    copyKey(tree, eps, native);
    // clip_ratio alone means both bounds.
    if (!given.includes(low)) copyKey(tree, low, both);
  } else if (common > 0 || (tree.value(eps) ?? null) !== null) {
    for (const path of given) warnOfNative(tree, [path, eps], { both: layerAt(tree, path) === common });
    copyKey(tree, both, eps);
    copyKey(tree, low, eps);
  }
  const upper = [epsHigh, eps].find((path) => (tree.value(path) ?? null) !== null);
  if (upper !== undefined) copyKey(tree, high, upper);
}

/** Without sampling the temperature is 0, regardless of its setting. */
function coerceGreedy(tree: SyncTree, section: string, common: string): void {
  const [flag, native] = [`${section}.do_sample`, `${section}.temperature`];
  if (tree.value(flag) !== false) return;
  const text = `${flag}=false changes ${native} and ${common} from ${String(tree.value(common))} to 0`;
  tree.warn("coerced", [flag, common], text);
  derive(tree, native, 0, flag);
  derive(tree, common, 0, flag);
}

const isAsync = (tree: SyncTree) => tree.value(asyncFlag) === true;

function coerceEngine(tree: SyncTree): void {
  coerce(tree, "actor_rollout_ref.hybrid_engine", !isAsync(tree));
}

function coerceWeightTransfer(tree: SyncTree): void {
  const key = `${rollout}.checkpoint_engine.backend`;
  if (!isAsync(tree)) coerce(tree, key, "naive");
  else if (tree.value(key) === "naive") coerce(tree, key, "nccl", { note: "; on CPUs it stays naive" });
}

function coerceIfAsync(key: string, from: string): SyncRule {
  return (tree) => {
    if (isAsync(tree)) coerce(tree, key, tree.value(from), { from });
  };
}

/** @param from the key that the value follows from */
function coerce(tree: SyncTree, key: string, value: unknown, { from = asyncFlag, note = "" } = {}): void {
  const before = tree.value(key);
  if (before === value) return;
  if (isExplicit(tree, key) || isAsync(tree)) {
    const text = `${asyncFlag}=${isAsync(tree)} changes ${key} from ${String(before)} to ${String(value)}${note}`;
    tree.warn("coerced", [key, from], text);
  }
  derive(tree, key, value, from);
}

/** Removes what verl's own tree says of teachers: an entry without a model, and how verl would serve it. */
function dropShippedTeachers(tree: SyncTree): void {
  const key = "distillation.teacher_models";
  const found = tree.node(key);
  if (found?.kind !== "map") return;
  const isSet = ({ node }: (typeof found.entries)[number]): boolean =>
    node.kind === "map" ? node.entries.some(isSet) : layerOf(node.origin) > 0;
  const entries = found.entries.filter(isSet).map((entry) => {
    const { node } = entry;
    return node.kind === "map" ? { ...entry, node: { ...node, entries: node.entries.filter(isSet) } } : entry;
  });
  tree.put(key, { ...found, entries });
}

type Tree = Readonly<Record<string, unknown>>;

/**
 * A tree for a file that composes to the same values again. It leaves out what the user did not set in verl's sections,
 * which verl's own tree gives again, and common names whose default differs from verl's: in a file both would count as set.
 */
function withoutVerlDefaults(tree: Tree, origins: ReadonlyMap<string, Origin>): Tree {
  const isSet = (key: string) => {
    const origin = origins.get(key);
    return origin !== undefined && origin.kind !== "synced" && layerOf(origin) > 0;
  };
  const sections = backendFacts.verl.ownSections;
  const own = [...origins.keys()].filter((key) => sections?.includes(key.split(".")[0]!));
  const different = [...olderVerlNames, ...currentVerlNames]
    .filter(([native, common]) => !isSet(native) && !isDeepStrictEqual(valueAt(tree, native), valueAt(tree, common)))
    .map(([, common]) => common);
  return [...own, ...different].filter((key) => !isSet(key)).reduce((rest, key) => without(rest, key.split(".")), tree);
}

/** Sections that become empty are left out too. */
function without(tree: Tree, [name = "", ...rest]: string[]): Tree {
  const { [name]: found, ...others } = tree;
  if (rest.length === 0 || typeof found !== "object" || found === null) return others;
  const left = without(found as Tree, rest);
  return Object.keys(left).length === 0 ? others : { ...tree, [name]: left };
}

// The trees that backends have besides the schema's keys.

interface OwnTree {
  /** Finds its folder. */
  folder(): string;
  /** Rules about its keys, in the order in which they are applied. */
  rules: readonly SyncRule[];
  /** Leaves out of a tree for a file what the backend's own tree gives again. */
  withoutDefaults(tree: Tree, origins: ReadonlyMap<string, Origin>): Record<string, unknown>;
}

export const ownTrees: Readonly<Partial<Record<Backend, OwnTree>>> = {
  verl: { folder: verlFolder, rules: verlRules, withoutDefaults: withoutVerlDefaults },
};
