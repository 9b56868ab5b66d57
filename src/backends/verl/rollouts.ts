/** Decides whether verl's own rollout servers sample or a vLLM server that Hone starts. */
import { valueAt } from "../../config/tree/value-at.ts";
import { UserError } from "../../errors.ts";
import { hasNvidiaGpu } from "../../python/find.ts";

type Tree = Readonly<Record<string, unknown>>;

const rollout = "actor_rollout_ref.rollout";

/** verl's servers that need GPUs. */
const onGpus = ["vllm", "sglang", "trtllm", "hf"];

export const usesGpu = (tree: Tree): boolean => hasNvidiaGpu() && valueAt(tree, "trainer.device") !== "cpu";

/** Whether verl's own rollout servers sample: on GPUs, and if the user has registered servers under another name. */
export function samplesWithVerl(tree: Tree): boolean {
  const name = valueAt(tree, `${rollout}.name`);
  return usesGpu(tree) || (typeof name === "string" && name !== "???" && !onGpus.includes(name));
}

/** The kind of HTTP routes that the servers have. */
export const rolloutKind = (tree: Tree): "vllm" | "sglang" =>
  valueAt(tree, `${rollout}.name`) === "sglang" ? "sglang" : "vllm";

/**
 * @param ranks verl's workers
 * @throws UserError when verl's servers could not start, or Hone could not sample from them
 */
export function checkRollouts(tree: Tree, ranks: number): void {
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
