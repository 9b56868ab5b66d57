/** Keys with two names on every backend, and other keys that set each other. */
import { configKeys } from "../../describe.ts";
import {
  derive,
  forwarded,
  isExplicit,
  type KeyPair,
  layerAt,
  type SyncRule,
  sameValue,
  warnOfConflict,
} from "./sync.ts";

/** Sizes come first, because other defaults refer to them. */
const sizes = ["train_batch_size", "val_batch_size", "max_prompt_length", "max_response_length"].map(
  (name): KeyPair => [`data.${name}`, `rllm.data.${name}`],
);

const sampling = ["train", "val"].flatMap((when) =>
  ["temperature", "top_p", "top_k", "min_p"].map(
    (name): KeyPair => [`sampling.${when}.${name}`, `rllm.rollout.${when}.${name}`],
  ),
);

/** Both names get the same value. The reference document does not deprecate these names, so setting them does not warn. */
export const sharedKeys: readonly KeyPair[] = [
  ...sizes,
  ...sampling,
  ["training.lr_schedule", "rllm.algorithm.lr_schedule"],
  ["training.warmup_steps_ratio", "rllm.algorithm.warmup_steps_ratio"],
  ["rollout_engine.disable_thinking", "rllm.disable_thinking"],
  ["rollout_engine.accumulate_reasoning", "rllm.accumulate_reasoning"],
  ["distillation.enabled", "rllm.distill.enable"],
];

/** Forwarded in one direction: the first key sets the second, unless the second is set too. */
export const forwardedKeys: readonly KeyPair[] = [
  ["training.group_size", "rllm.rollout.n"],
  ["validation.group_size", "rllm.rollout.n_val"],
];

export const sharedRules: readonly SyncRule[] = [
  ...sharedKeys.map((pair) => sameValue(pair)),
  ...forwardedKeys.map(forwarded),
  enableTraces,
];

/** Setting the path of the trace database enables traces, unless a later layer sets `rllm.gateway.store`. */
function enableTraces(tree: Parameters<SyncRule>[0]): void {
  const store = "rllm.gateway.store";
  for (const path of ["rllm.gateway.db_path", "rllm.sdk.store.path"]) {
    const value = tree.value(path) ?? null;
    const [pathLayer, storeLayer] = [layerAt(tree, path), layerAt(tree, store)];
    // A saved configuration sets every key in one layer, so there the default path does not count as set.
    const isSet = value !== configKeys.get(path)?.default ? pathLayer >= storeLayer : pathLayer > storeLayer;
    if (value !== null && pathLayer > 0 && isSet && tree.value(store) !== "sqlite") {
      derive(tree, store, "sqlite", path, "forwarded");
    }
  }
}

/** Applies `resume_from_tinker_id`, Tinker's name for `resume_from_path` with `resume_mode=path`. */
export const resumeFromTinkerId: SyncRule = (tree) => {
  const mode = "training.resume_mode";
  const path = "training.resume_from_path";
  const id = "training.resume_from_tinker_id";
  if (!isExplicit(tree, id) || (tree.value(id) ?? null) === null) return;
  const isLater = isExplicit(tree, path) && layerAt(tree, path) >= layerAt(tree, id);
  if (isLater && warnOfConflict(tree, [id, path])) return;
  derive(tree, path, tree.value(id), id, "forwarded");
  if (!isExplicit(tree, mode)) derive(tree, mode, "path", id, "forwarded");
};
