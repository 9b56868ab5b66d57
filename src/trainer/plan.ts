/**
 * What a run will do, computed from the configuration and the sizes of the datasets: steps, validations, checkpoints,
 * the arithmetic of a step, asynchronous training.
 */
import { isRemote } from "../backends/backends.ts";
import { trainingProcesses } from "../backends/local/options.ts";
import type { Config } from "../config/schema.ts";
import { stepsPerEpoch, tasksPerDraw, totalSteps } from "../data/dataset.ts";
import { formatCount } from "../tracking/events.ts";
import type { Experiment } from "./experiment.ts";

// `rllm.async_training` as options.

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

// When to validate and save: a pure function of the configuration and the datasets' sizes. Steps count from 1.

export interface Plan {
  /** Fewer are done if steps need several draws of tasks, see `totalDraws`. */
  totalSteps: number;
  /**
   * Draws of tasks in `rllm.trainer.total_epochs` passes over the data. Infinite if the number of steps was set, and in
   * asynchronous training, where each step takes the tasks of one batch.
   */
  totalDraws: number;
  stepsPerEpoch: number;
  /** Whether to validate before the first step. */
  validatesFirst: boolean;
  /** Steps between validations and between checkpoints, for `isDue`. */
  validateEvery: number;
  saveEvery: number;
  /** One line with the size of a step: tasks, rollouts, sequences. */
  arithmetic: string;
}

/** @throws UserError if a dataset is too small */
export function planOf({ source, train, validation }: Experiment<unknown>, config: Config): Plan {
  const { val_only, val_before_train, test_freq, save_freq, freq_unit, total_batches } = config.rllm.trainer;
  const perEpoch = val_only
    ? 0
    : source
      ? Math.ceil(train.size / config.data.train_batch_size)
      : stepsPerEpoch(train.size, tasksPerDraw(config), batchKey(config));
  const total = val_only ? 0 : totalSteps(config, perEpoch);
  const unit = freq_unit === "epochs" ? perEpoch : 1;
  return {
    totalSteps: total,
    totalDraws: config.rllm.async_training.enable || (total_batches ?? 0) > 0 ? Number.POSITIVE_INFINITY : total,
    stepsPerEpoch: perEpoch,
    validatesFirst: val_before_train || val_only,
    validateEvery: test_freq * unit,
    saveEvery: save_freq * unit,
    arithmetic:
      validation && val_only
        ? measureArithmetic(config, validation.size)
        : source
          ? sourceArithmetic(config, { name: source.name, size: train.size, total, perEpoch })
          : arithmetic(config, total, perEpoch),
  };
}

/**
 * The size of a training step in one line. An episode gives one sequence for each conversation that was only
 * continued, and more where agents rewrite history or several agents act.
 *
 * @example "16 tasks x 8 rollouts = 128 episodes -> 128 sequences or more -> 2 optimizer steps of about 64 per training step
 * -> about 32 for each of 2 processes, in micro-batches of up to 4096 tokens; ..."
 */
function arithmetic(config: Config, total: number, perEpoch: number): string {
  const { num_minibatches: parts, ppo_epochs: epochs } = config.training;
  const tasks = tasksPerDraw(config);
  const { n } = config.rllm.rollout;
  const episodes = tasks * n;
  const optimizerSteps = parts * epochs;
  const size = Math.ceil(episodes / parts);
  return (
    `${tasks} tasks x ${n} rollouts = ${episodes} episodes -> ${episodes} sequences or more -> ` +
    `${optimizerSteps} optimizer step${optimizerSteps === 1 ? "" : "s"}${parts === 1 ? "" : ` of about ${size}`} per training step${perProcess(config, size)}; ` +
    `${formatCount(total)} step${total === 1 ? "" : "s"} (${formatCount(perEpoch)} per epoch) = ${formatCount(total * episodes)} episodes${config.rllm.async_training.enable ? asyncArithmetic(config) : ""}`
  );
}

function sourceArithmetic(
  config: Config,
  { name, size, total, perEpoch }: { name: string; size: number; total: number; perEpoch: number },
): string {
  const { train_batch_size: batch } = config.data;
  const { num_minibatches: parts, ppo_epochs: epochs } = config.training;
  const steps = parts * epochs;
  return (
    `${formatCount(size)} ${name}, ${Math.min(batch, size)} for each training step${perProcess(config, batch / parts)}` +
    ` -> ${steps} optimizer step${steps === 1 ? "" : "s"}; ` +
    `${formatCount(total)} step${total === 1 ? "" : "s"} (${formatCount(perEpoch)} per epoch)`
  );
}

/** How the sequences of an optimizer step are shared by the processes that train. */
function perProcess(config: Config, sequences: number): string {
  const { sequence_parallel: together, micro_batch_tokens: tokens } = config.local;
  const processes = trainingProcesses(config);
  const groups = processes / together;
  if (processes === 1 || isRemote(config) || !Number.isInteger(groups)) return "";
  const who = together === 1 ? `${groups} processes` : `${groups} groups of ${together} processes`;
  const parts = tokens === 0 ? "that fit into memory" : `of up to ${tokens} tokens`;
  return ` -> about ${Math.ceil(sequences / groups)} for each of ${who}, in micro-batches ${parts}`;
}

function asyncArithmetic(config: Config): string {
  const { quota, stepsPerSync, batch } = asyncOptions(config);
  return `; asynchronous: of up to ${quota} tasks dispatched from one update of the sampler's weights to the next, ${stepsPerSync * batch} are trained on`;
}

function measureArithmetic({ rllm }: Config, tasks: number): string {
  const { n_val: n } = rllm.rollout;
  return `${tasks} validation tasks x ${n} rollout${n === 1 ? "" : "s"} = ${tasks * n} episodes`;
}

const batchKey = ({ rllm }: Config) =>
  rllm.async_training.enable ? "rllm.async_training.mini_batch_size" : "data.train_batch_size";
