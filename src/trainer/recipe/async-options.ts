/** `rllm.async_training` as options, and the combinations that are refused. */
import { isCoupled } from "../../algorithms/policy-loss/loss-choice.ts";
import type { Capabilities } from "../../backends/engine.ts";
import type { Config } from "../../config/schema.ts";
import { UserError } from "../../errors.ts";
import type { Experiment } from "../experiment.ts";
import { policyLossOptions } from "./loss-options.ts";

export interface AsyncOptions {
  /** Tasks of an optimizer step. */
  batch: number;
  /** Tasks whose sequences go into one forward and backward pass. */
  atOnce: number;
  /** Training steps between two updates of the sampler's weights. */
  stepsPerSync: number;
  /** Tasks that may be dispatched from one update of the sampler's weights to the next, those carried over included. */
  quota: number;
  /** A task is trained on if at most this many updates of the sampler came after its oldest token. */
  maxLag: number;
  /** Running rollouts continue over an update. */
  partial: boolean;
  /** Folders for episodes that wait, by rollout and by task; null: memory. */
  offload: { episodes: string | null; groups: string | null };
}

/**
 * `staleness_threshold` is the share of a window that may be dispatched ahead. It is trained on within that many updates,
 * rounded up. Only rollouts that continue over updates can get older.
 */
export function asyncOptions({ rllm: { async_training: keys } }: Config): AsyncOptions {
  const { mini_batch_size: batch, trigger_parameter_sync_step: stepsPerSync, staleness_threshold: staleness } = keys;
  return {
    batch,
    atOnce: keys.fwd_bwd_group_size ?? batch,
    stepsPerSync,
    quota: Math.floor((1 + staleness) * stepsPerSync * batch),
    maxLag: Math.ceil(staleness),
    partial: keys.partial_rollout,
    offload: { episodes: keys.episode_offload_dir, groups: keys.trajectory_group_offload_dir },
  };
}

/** Whether the run trains on tasks that older weights have sampled. */
const runsAhead = ({ quota, batch }: AsyncOptions) => quota > batch;

/**
 * @returns what the user should know, a sentence each
 * @throws UserError if settings contradict each other or the engine cannot sample between two updates
 */
export function checkAsync(
  config: Config,
  { losses }: Pick<Experiment<unknown>, "losses">,
  capabilities: Capabilities,
): string[] {
  if (!config.rllm.async_training.enable) return [];
  const options = asyncOptions(config);
  const found = contradictions(config, options, isCoupled(policyLossOptions(config, losses)), capabilities).find(
    ([, contradicts]) => contradicts,
  );
  if (found) throw new UserError(found[0], { hint: found[2] });
  const { bypass_mode, tis_mode } = config.rllm.algorithm.rollout_correction;
  const warnings: string[] = [];
  if (runsAhead(options) && !bypass_mode && tis_mode === null) {
    warnings.push(
      "tokens sampled by older weights are trained on as if the current weights had sampled them; to correct this, set rllm.algorithm.rollout_correction.tis_mode=token (weights each token's loss) or bypass_mode=true (ratios start from the sampler's log-probabilities)",
    );
  }
  return warnings;
}

function contradictions(
  config: Config,
  options: AsyncOptions,
  coupled: boolean,
  { engine, frozenSampler }: Capabilities,
): [string, boolean, hint: string][] {
  const { batch, atOnce, stepsPerSync, partial } = options;
  const { enable: rejects, mode } = config.rllm.rejection_sample;
  const waits = !frozenSampler[config.model.lora_rank === 0 ? "full" : "lora"];
  return [
    [
      `rllm.async_training.fwd_bwd_group_size=${atOnce} does not divide mini_batch_size=${batch}`,
      batch % atOnce !== 0,
      "set a divisor of it, or null for all at once",
    ],
    [
      `rllm.async_training.fwd_bwd_group_size=${atOnce} divides a step, but the loss must see all of it at once`,
      coupled && atOnce < batch,
      "leave fwd_bwd_group_size null with clip_cov and kl_cov",
    ],
    [
      "rllm.rejection_sample draws whole batches again, which is not supported with asynchronous training",
      rejects || mode === "episode",
      "set rllm.dynamic_sampling.enable=true, which replaces single tasks that teach nothing",
    ],
    [
      `the ${engine} engine keeps no second copy of all weights, so it cannot sample between an optimizer step and the next update of the sampler, which would wait for rollouts that wait for it`,
      waits && (stepsPerSync > 1 || (runsAhead(options) && !partial)),
      "train a LoRA (model.lora_rank=32), or set rllm.async_training.trigger_parameter_sync_step=1 and partial_rollout=true",
    ],
  ];
}
