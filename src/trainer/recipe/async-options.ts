/** `rllm.async_training` as options. */
import type { Config } from "../../config/schema.ts";

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

/** @returns what the user should know, a sentence each */
export function asyncWarnings(config: Config): string[] {
  const { enable } = config.rllm.async_training;
  const { bypass_mode, tis_mode } = config.rllm.algorithm.rollout_correction;
  if (!enable || bypass_mode || tis_mode !== null || !runsAhead(asyncOptions(config))) return [];
  return [
    "tokens sampled by older weights are trained on as if the current weights had sampled them; to correct this, set rllm.algorithm.rollout_correction.tis_mode=token (weights each token's loss) or bypass_mode=true (ratios start from the sampler's log-probabilities)",
  ];
}
