/** Tasks of a step and the episodes that the policy makes of them. */
import type { Task } from "../agents/types.ts";
import type { Config } from "../config/schema.ts";
import { taskIndices } from "../data/sampler.ts";
import { UserError } from "../errors.ts";
import { createSamplingClient, rolloutSeed, runRollouts } from "../rollout/index.ts";
import type { Episode } from "../trajectories/types.ts";
import type { Run } from "./run.ts";

export interface Collection {
  purpose: "train" | "validate";
  tasks: readonly Task[];
  /** Rollouts per task. */
  rollouts: number;
  sampling: Config["sampling"]["train"];
  /** Steps count from 1; 0 is before training. */
  step: number;
}

/** The tasks of a training step: a pure function of the step, so a resumed run draws the same ones. */
export function tasksOfStep(run: Run, step: number): { epoch: number; tasks: Task[] } {
  const { train } = run.experiment;
  const { seed } = run.config.rllm.trainer;
  const { train_batch_size: batchSize, shuffle } = run.config.data;
  const { epoch, indices } = taskIndices({ size: train.size, batchSize, seed, shuffle }, step - 1);
  return { epoch, tasks: indices.map((index) => train.task(index)) };
}

export async function collectEpisodes(run: Run, collection: Collection): Promise<Episode[]> {
  const { config, policy, chat, engine, experiment, signal } = run;
  const { purpose, tasks, rollouts, sampling, step } = collection;
  const { n_parallel_tasks, retry_limit, raise_on_error, timeout, seed } = {
    ...config.rllm.workflow,
    ...config.rllm.trainer,
  };
  const client = createSamplingClient({
    policy,
    chat,
    defaults: { temperature: sampling.temperature, topP: sampling.top_p, topK: sampling.top_k, minP: sampling.min_p },
    limits: {
      maxPromptLength: config.data.max_prompt_length,
      maxResponseLength: config.data.max_response_length,
      maxLength: Math.min(config.training.max_length, engine.model.maxLength),
    },
    // Validation repeats its draws at every step, so that its figures differ by the weights alone.
    seedFor: purpose === "train" ? rolloutSeed(seed, "train", step) : rolloutSeed(seed, "validate"),
  });
  run.watch(() =>
    client
      .waitingFor()
      .map(({ taskId, rollout, what, seconds }) => ({ what: `rollout ${rollout} of ${taskId}: ${what}`, seconds })),
  );
  let done = 0;
  let tokens = 0;
  const total = tasks.length * rollouts;
  run.emit({ type: "rollout-progress", step, done, total, tokens });
  try {
    const episodes = await runRollouts({
      tasks,
      n: rollouts,
      workflow: experiment.workflow,
      client,
      purpose,
      nParallelTasks: n_parallel_tasks,
      retryLimit: retry_limit,
      timeoutSeconds: timeout,
      raiseOnError: raise_on_error,
      signal,
      onEpisode: (episode) => {
        done++;
        tokens += sampledTokens(episode);
        run.emit({ type: "rollout-progress", step, done, total, tokens });
      },
      onRetry: ({ taskId, rollout, failure }) => {
        const text = `rollout ${rollout} of ${taskId} failed and is made again: ${failure.boundary}: ${failure.message}`;
        run.emit({ type: "warning", text });
      },
    });
    checkPrompts(run, episodes);
    return episodes;
  } finally {
    run.watch(undefined);
  }
}

/** Prompts that are too long are left out and said; when all are, nothing can be learned or measured. */
function checkPrompts({ config, emit }: Run, episodes: readonly Episode[]): void {
  const tooLong = episodes.filter(({ termination }) => termination === "max_prompt_length_exceeded");
  const [first] = tooLong;
  if (first === undefined) return;
  const text = `${tooLong.length} of ${episodes.length} rollouts ended at data.max_prompt_length or training.max_length; task ${first.taskId}: ${first.explanation}`;
  const hint = `raise data.max_prompt_length (now ${config.data.max_prompt_length}), or shorten the prompts`;
  if (tooLong.length === episodes.length) throw new UserError(text, { hint });
  emit({ type: "warning", text: `${text}; ${hint}` });
}

/** Tokens sampled in an episode. */
export function sampledTokens(episode: Episode): number {
  return episode.trajectories.flatMap(({ steps }) => steps).reduce((sum, { tokens }) => sum + tokens.length, 0);
}
