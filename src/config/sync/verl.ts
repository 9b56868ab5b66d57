/**
 * verl's own keys and `rllm.*`, kept at one value (the reference document's "Bidirectional config sync"). Where rLLM's
 * code does something else than the document says, docs/decisions/verl-sync.md tells what Hone does.
 */
import type { Origin } from "../origin.ts";
import { type SharedKey, verlSharedKeys } from "./shared-keys.ts";
import { isExplicit, layerAt, point, type SyncOptions, type SyncTree, syncSharedKey, warnOfNative } from "./sync.ts";

const actor = "actor_rollout_ref.actor";
const rollout = "actor_rollout_ref.rollout";
const algorithm = "rllm.algorithm";

export function syncVerl(tree: SyncTree, options: SyncOptions): void {
  for (const key of verlSharedKeys) syncSharedKey(tree, key, options);
  syncSchedule(tree, options);
  syncTotalSteps(tree, options);
  deriveKlLoss(tree);
  deriveRoutingReplay(tree);
  syncClipRatio(tree, options);
  coerceGreedy(tree, options);
  coerceAsync(tree, options);
}

/** The key's name differs between verl's training engines. */
function syncSchedule(tree: SyncTree, options: SyncOptions): void {
  const names = ["lr_scheduler_type", "lr_decay_style", "decay_type"].map((name) => `${actor}.optim.${name}`);
  const native = names.find((name) => tree.node(name) !== undefined);
  if (native !== undefined) syncSharedKey(tree, [native, `${algorithm}.lr_schedule`], options);
}

/** rLLM's "0 or less: by epochs" is verl's null. */
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
    point(tree, rllm, native);
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

/** R3 is recorded by the sampler, which must be told. */
function deriveRoutingReplay(tree: SyncTree): void {
  const flag = `${rollout}.enable_rollout_routing_replay`;
  if (tree.node(flag) === undefined || tree.value(`${algorithm}.router_replay`) !== "R3") return;
  derive(tree, flag, true, `${algorithm}.router_replay`);
}

/** eps_clip is the lower bound and, unless eps_clip_high is set, the upper one too. */
function syncClipRatio(tree: SyncTree, options: SyncOptions): void {
  const [both, low, high] = [`${actor}.clip_ratio`, `${actor}.clip_ratio_low`, `${actor}.clip_ratio_high`];
  const [eps, epsHigh] = [`${algorithm}.eps_clip`, `${algorithm}.eps_clip_high`];
  if (tree.node(both) === undefined) return;
  const common = layerAt(tree, eps);
  const given = [low, both].filter((path) => isExplicit(tree, path));
  const native = given.filter((path) => layerAt(tree, path) > common);
  if (native.length > 0) {
    for (const path of given) warnOfNative(tree, path, eps, false, options);
    point(tree, eps, native[0]!);
    // clip_ratio alone means both bounds.
    if (!given.includes(low)) point(tree, low, both);
  } else if (common > 0 || (tree.value(eps) ?? null) !== null) {
    for (const path of given) warnOfNative(tree, path, eps, layerAt(tree, path) === common, options);
    point(tree, both, eps);
    point(tree, low, eps);
  }
  const upper = [epsHigh, eps].find((path) => (tree.value(path) ?? null) !== null);
  if (upper !== undefined) point(tree, high, upper);
}

/** Without sampling the temperature is 0, whatever was set. */
function coerceGreedy(tree: SyncTree, options: SyncOptions): void {
  const cases = [
    [`${rollout}.do_sample`, `${rollout}.temperature`, "rllm.rollout.train.temperature"],
    [`${rollout}.val_kwargs.do_sample`, `${rollout}.val_kwargs.temperature`, "rllm.rollout.val.temperature"],
  ] as const;
  for (const [flag, native, rllm] of cases) {
    if (tree.value(flag) !== false) continue;
    const text = `${flag}=false makes ${native} and ${rllm} 0 instead of ${String(tree.value(rllm))}`;
    options.warn({ category: "coerced", paths: [flag, rllm], text });
    derive(tree, native, 0, flag);
    derive(tree, rllm, 0, flag);
  }
}

/** Generation beside training needs separate engines; generation in turn with it shares one. */
function coerceAsync(tree: SyncTree, { warn }: SyncOptions): void {
  const cause = "rllm.async_training.enable";
  const separate = tree.value(cause) === true;
  const coerce = (path: string, value: unknown, from = cause) => {
    const before = tree.value(path);
    if (tree.node(path) === undefined || before === value) return;
    if (isExplicit(tree, path) || separate) {
      const text = `${cause}=${separate} makes ${path} ${String(value)} instead of ${String(before)}`;
      warn({ category: "coerced", paths: [path, from], text });
    }
    derive(tree, path, value, from);
  };
  coerce("actor_rollout_ref.hybrid_engine", !separate);
  const weights = `${rollout}.checkpoint_engine.backend`;
  if (!separate) coerce(weights, "naive");
  else {
    if (tree.value(weights) === "naive") coerce(weights, "nccl");
    const size = "rllm.async_training.mini_batch_size";
    coerce(`${actor}.ppo_mini_batch_size`, tree.value(size), size);
    const partial = "rllm.async_training.partial_rollout";
    coerce("async_training.partial_rollout", tree.value(partial), partial);
  }
}

function derive(tree: SyncTree, path: string, value: unknown, from: string): void {
  const said = tree.node(from)?.origin ?? { kind: "default" };
  const origin: Origin = { kind: "synced", how: "synced", from, of: said.kind === "synced" ? said.of : said };
  tree.put(path, { kind: "value", origin, value });
}
