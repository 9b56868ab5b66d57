/**
 * Synchronizes verl's own keys with `rllm.*` (the reference document's "Bidirectional config sync").
 * docs/decisions/verl-sync.md explains what Hone does where rLLM's code differs from the document.
 */
import { type SharedKey, verlOwnKeys, verlSharedKeys } from "./shared-keys.ts";
import {
  copyKey,
  derive,
  isExplicit,
  layerAt,
  type SyncOptions,
  type SyncTree,
  syncSharedKey,
  warnOfNative,
} from "./sync.ts";

const actor = "actor_rollout_ref.actor";
const rollout = "actor_rollout_ref.rollout";
const algorithm = "rllm.algorithm";

export function syncVerl(tree: SyncTree, warn: SyncOptions["warn"]): void {
  const options: SyncOptions = { deprecated: true, warn };
  // `data.*` are keys of Hone on every backend, so scripts set them without a warning.
  for (const key of verlSharedKeys) syncSharedKey(tree, key, { warn, deprecated: !key[0].startsWith("data.") });
  for (const key of verlOwnKeys) if (tree.node(key[0])) syncSharedKey(tree, key, { deprecated: false, warn });
  syncSchedule(tree, options);
  syncTotalSteps(tree, options);
  deriveKlLoss(tree);
  deriveRoutingReplay(tree);
  syncClipRatio(tree, options);
  coerceGreedy(tree, options);
  coerceAsync(tree, options);
}

/** The name of the schedule key depends on verl's training engine. */
function syncSchedule(tree: SyncTree, options: SyncOptions): void {
  const names = ["lr_scheduler_type", "lr_decay_style", "decay_type"].map((name) => `${actor}.optim.${name}`);
  const native = names.find((name) => tree.node(name) !== undefined);
  if (native !== undefined) syncSharedKey(tree, [native, `${algorithm}.lr_schedule`], options);
}

/** rLLM's 0 or less (train by epochs) corresponds to verl's null. */
function syncTotalSteps(tree: SyncTree, options: SyncOptions): void {
  const [native, rllm]: SharedKey = ["trainer.total_training_steps", "rllm.trainer.total_batches"];
  if (tree.node(native) === undefined) return;
  const forVerl = () => {
    const steps = tree.value(rllm);
    return typeof steps === "number" && steps <= 0 ? null : (steps ?? null);
  };
  const [ownLayer, commonLayer] = [layerAt(tree, native), layerAt(tree, rllm)];
  if (ownLayer > commonLayer) {
    warnOfNative(tree, native, rllm, false, options);
    copyKey(tree, rllm, native);
    if (tree.value(native) === null) derive(tree, rllm, -1, native);
    return;
  }
  if (ownLayer > 0) {
    const differ = ownLayer === commonLayer && tree.value(native) !== forVerl();
    const text = `${native} and ${rllm} differ; ${rllm} wins`;
    if (differ) options.warn({ category: "conflict", paths: [native, rllm], text });
    else warnOfNative(tree, native, rllm, false, options);
  }
  derive(tree, native, forVerl(), rllm);
}

function deriveKlLoss(tree: SyncTree): void {
  const flag = `${actor}.use_kl_loss`;
  if (tree.node(flag) === undefined || isExplicit(tree, flag)) return;
  const weight = tree.value(`${algorithm}.kl_beta`);
  derive(tree, flag, typeof weight === "number" && weight > 0, `${algorithm}.kl_beta`);
}

/** With R3, the sampler records the routing, which verl enables by a separate flag. */
function deriveRoutingReplay(tree: SyncTree): void {
  const flag = `${rollout}.enable_rollout_routing_replay`;
  if (tree.node(flag) === undefined || tree.value(`${algorithm}.router_replay`) !== "R3") return;
  derive(tree, flag, true, `${algorithm}.router_replay`);
}

/** eps_clip is the lower bound and, unless eps_clip_high is set, also the upper bound. */
function syncClipRatio(tree: SyncTree, options: SyncOptions): void {
  const [both, low, high] = [`${actor}.clip_ratio`, `${actor}.clip_ratio_low`, `${actor}.clip_ratio_high`];
  const [eps, epsHigh] = [`${algorithm}.eps_clip`, `${algorithm}.eps_clip_high`];
  if (tree.node(both) === undefined) return;
  const common = layerAt(tree, eps);
  const given = [low, both].filter((path) => isExplicit(tree, path));
  const native = given.find((path) => layerAt(tree, path) > common);
  if (native !== undefined) {
    for (const path of given) warnOfNative(tree, path, eps, false, options);
    copyKey(tree, eps, native);
    // clip_ratio alone means both bounds.
    if (!given.includes(low)) copyKey(tree, low, both);
  } else if (common > 0 || (tree.value(eps) ?? null) !== null) {
    for (const path of given) warnOfNative(tree, path, eps, layerAt(tree, path) === common, options);
    copyKey(tree, both, eps);
    copyKey(tree, low, eps);
  }
  const upper = [epsHigh, eps].find((path) => (tree.value(path) ?? null) !== null);
  if (upper !== undefined) copyKey(tree, high, upper);
}

/** Without sampling the temperature is 0, regardless of its setting. */
function coerceGreedy(tree: SyncTree, options: SyncOptions): void {
  const cases = [
    [`${rollout}.do_sample`, `${rollout}.temperature`, "rllm.rollout.train.temperature"],
    [`${rollout}.val_kwargs.do_sample`, `${rollout}.val_kwargs.temperature`, "rllm.rollout.val.temperature"],
  ] as const;
  for (const [flag, native, rllm] of cases) {
    if (tree.value(flag) !== false) continue;
    const text = `${flag}=false changes ${native} and ${rllm} from ${String(tree.value(rllm))} to 0`;
    options.warn({ category: "coerced", paths: [flag, rllm], text });
    derive(tree, native, 0, flag);
    derive(tree, rllm, 0, flag);
  }
}

/** Generating while training needs separate engines; alternating between them shares one engine. */
function coerceAsync(tree: SyncTree, { warn }: SyncOptions): void {
  const cause = "rllm.async_training.enable";
  const separate = tree.value(cause) === true;
  const coerce = (path: string, value: unknown, { from = cause, note = "" } = {}) => {
    const before = tree.value(path);
    if (tree.node(path) === undefined || before === value) return;
    if (isExplicit(tree, path) || separate) {
      const text = `${cause}=${separate} changes ${path} from ${String(before)} to ${String(value)}${note}`;
      warn({ category: "coerced", paths: [path, from], text });
    }
    derive(tree, path, value, from);
  };
  coerce("actor_rollout_ref.hybrid_engine", !separate);
  const weights = `${rollout}.checkpoint_engine.backend`;
  if (!separate) coerce(weights, "naive");
  else {
    if (tree.value(weights) === "naive") coerce(weights, "nccl", { note: "; on CPUs it stays naive" });
    const size = "rllm.async_training.mini_batch_size";
    coerce(`${actor}.ppo_mini_batch_size`, tree.value(size), { from: size });
    const partial = "rllm.async_training.partial_rollout";
    coerce("async_training.partial_rollout", tree.value(partial), { from: partial });
  }
}
