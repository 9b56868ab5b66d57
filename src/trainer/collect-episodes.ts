/** Tasks of a step and the episodes that the policy makes of them. */
import type { Task } from "../agents/types.ts";
import type { Config } from "../config/schema.ts";
import { taskIndices } from "../data/sampler.ts";
import { UserError } from "../errors.ts";
import { rolloutGateway } from "../gateway/rollout-gateway.ts";
import {
  createSamplingClient,
  parseOnAgentError,
  rolloutSeed,
  runRollouts,
  type SampleQueue,
  type SamplingClient,
} from "../rollout/index.ts";
import type { Episode } from "../trajectories/types.ts";
import { tasksPerDraw } from "./credit-options.ts";
import type { Run, Waiting } from "./run.ts";
import { summarizeWarnings } from "./warning-summary.ts";

export interface Collection {
  purpose: "train" | "validate";
  tasks: readonly Task[];
  /** Rollouts per task. */
  rollouts: number;
  sampling: Config["rllm"]["rollout"]["train"];
  /** Steps count from 1; 0 is before training. */
  step: number;
  /** Which draw of tasks since training began, from 1; a step makes one or more. */
  draw?: number;
  /** Number of each task's first rollout; default 0. */
  firstRollout?: number;
  /** How often these rollouts were made and thrown away before; each time they are drawn anew. Default 0. */
  again?: number;
  /** Of collections that run at the same time: this one's place among them, and the queue of their model calls. */
  beside?: { order: number; queue: SampleQueue };
}

/** The tasks of a draw: a pure function of its number, so a resumed run draws the same ones. */
export function tasksOfDraw(run: Run, draw: number): { epoch: number; tasks: Task[] } {
  const { train } = run.experiment;
  const { seed } = run.config.rllm.trainer;
  const batchSize = tasksPerDraw(run.config);
  const { epoch, indices } = taskIndices(
    { size: train.size, batchSize, seed, shuffle: run.config.data.shuffle },
    draw - 1,
  );
  return { epoch, tasks: indices.map((index) => train.task(index)) };
}

/** Shows how far it has come, and says where prompts are too long. */
export async function collectEpisodes(run: Run, collection: Collection): Promise<Episode[]> {
  const { tasks, rollouts, step } = collection;
  const client = openClient(run, collection);
  run.watch(() => describeWaiting(client));
  let done = 0;
  let tokens = 0;
  const total = tasks.length * rollouts;
  run.emit({ type: "rollout-progress", step, done, total, tokens });
  try {
    const episodes = await attemptTasks(run, collection, {
      client,
      signal: run.signal,
      onEpisode: (episode) => {
        done++;
        tokens += sampledTokens(episode);
        run.emit({ type: "rollout-progress", step, done, total, tokens });
      },
    });
    checkPrompts(run, episodes);
    return episodes;
  } finally {
    run.watch(undefined);
  }
}

export function openClient(run: Run, collection: Collection): SamplingClient {
  const { config, sampler, chat, engine } = run;
  const { purpose, sampling, step, draw = step, again = 0, beside } = collection;
  const { seed } = config.rllm.trainer;
  const anew = again === 0 ? [] : ["again", again];
  return createSamplingClient({
    sampler,
    chat,
    defaults: { temperature: sampling.temperature, topP: sampling.top_p, topK: sampling.top_k, minP: sampling.min_p },
    limits: {
      maxPromptLength: config.data.max_prompt_length,
      maxResponseLength: sampling.max_tokens,
      maxLength: config.training.max_length,
      contextWindow: engine.model.maxLength,
    },
    // Validation repeats its draws at every step, so that its figures differ by the weights alone.
    seedFor: purpose === "train" ? rolloutSeed(seed, "train", draw, ...anew) : rolloutSeed(seed, "validate"),
    grouping: { groupBy: config.rllm.sdk.processing.groupby_key, nameBy: config.rllm.sdk.processing.traj_name_key },
    ...(beside === undefined ? {} : { queue: beside.queue }),
  });
}

/** What a client's rollouts wait for, for the progress line. */
export function describeWaiting(client: SamplingClient): Waiting[] {
  const waiting = client.waitingFor();
  return waiting.map(({ taskId, rollout, what, seconds }) => ({
    what: `rollout ${rollout} of ${taskId}: ${what}`,
    seconds,
  }));
}

interface Attempting {
  client: SamplingClient;
  signal: AbortSignal;
  onEpisode: (episode: Episode) => void;
}

export function attemptTasks(
  run: Run,
  { purpose, tasks, rollouts, step, draw = step, firstRollout = 0, again = 0, beside }: Collection,
  attempting: Attempting,
): Promise<Episode[]> {
  const { config, workflow } = run;
  const warn = (text: string) => run.emit({ type: "warning", text });
  const warnings = summarizeWarnings(warn, `step ${step}; its file in episodes/ has the details`);
  return runRollouts({
    ...{ tasks, n: rollouts, firstRollout, workflow, purpose },
    ...attempting,
    ...rolloutOptions(config),
    ...(beside === undefined ? {} : { firstOrder: beside.order }),
    gateway: rolloutGateway(run.gateway, {
      prefix: `${purpose}-${draw}${again === 0 ? "" : `-again-${again}`}/`,
      enforceSampling: config.rllm.gateway.client_sampling === "ignore",
      metadata: { step },
    }),
    onRetry: ({ taskId, rollout, failure }) => {
      const cause = `${failureNames[failure.kind]}: ${failure.message}`;
      warnings.add(`retries after ${cause}`, `retrying rollout ${rollout} of ${taskId} after ${cause}`);
    },
    onFailure: ({ taskId, rollout, failure, reward }) => {
      const worth =
        reward === null ? "its reward is unknown" : `its reward is ${reward} (rllm.workflow.on_agent_error)`;
      const cause = `${failureNames[failure.kind]}, ${worth}: ${failure.message}`;
      warnings.add(`rollouts ended with ${cause}`, `rollout ${rollout} of ${taskId} ended with ${cause}`);
    },
    onLog: ({ taskId, rollout, text }) => {
      run.emit({ type: "rollout-log", text: `rollout ${rollout} of ${taskId}: ${text}` });
    },
    onTearDownProblem: ({ taskId, rollout, message }) => {
      const text = `tearing down rollout ${rollout} of ${taskId}: what it registered ${message}`;
      run.emit({ type: "warning", text });
    },
  }).finally(() => warnings.end());
}

const failureNames = {
  model: "an unusable reply of the model",
  agent: "an error of the agent",
  reward: "an error of the reward",
  infrastructure: "an infrastructure failure",
} as const;

/** Rollouts that run at the same time. */
export const rolloutsAtOnce = ({ rllm: { agent, workflow } }: Pick<Config, "rllm">) =>
  agent.engine_args.n_parallel_agents ?? workflow.n_parallel_tasks;

/** What `rllm.workflow` and `rllm.agent` say of how rollouts are run. */
function rolloutOptions({ rllm }: Config) {
  const { retry_limit, raise_on_error, on_agent_error, workflow_args } = rllm.workflow;
  const { set_up_timeout, score_timeout, tear_down_timeout } = rllm.workflow;
  const { max_steps, trajectory_timeout } = rllm.agent;
  return {
    nParallelTasks: rolloutsAtOnce({ rllm }),
    retryLimit: retry_limit,
    raiseOnError: raise_on_error,
    onAgentError: parseOnAgentError(on_agent_error),
    timeoutSeconds: workflow_args.timeout,
    limits: {
      ...(set_up_timeout === null ? {} : { setUpSeconds: set_up_timeout }),
      ...(trajectory_timeout === null ? {} : { runSeconds: trajectory_timeout }),
      ...(score_timeout === null ? {} : { scoreSeconds: score_timeout }),
      tearDownSeconds: tear_down_timeout,
    },
    maxSteps: max_steps,
    shaping: { gamma: workflow_args.gamma, rewardBonus: workflow_args.reward_bonus_coeff },
    seed: rllm.trainer.seed,
  };
}

/** Prompts that are too long are left out and said; when all are, nothing can be learned or measured. */
export function checkPrompts({ emit }: Run, episodes: readonly Episode[]): void {
  const tooLong = episodes.filter(({ termination }) => termination === "max_prompt_length_exceeded");
  const [first] = tooLong;
  if (first === undefined) return;
  const text = `${tooLong.length} of ${episodes.length} rollouts ended because the prompt was too long; task ${first.taskId}: ${first.explanation}`;
  const hint = "raise that limit, or shorten the prompts";
  if (tooLong.length === episodes.length) throw new UserError(text, { hint });
  emit({ type: "warning", text: `${text}; ${hint}` });
}

/** Tokens sampled in an episode. */
export function sampledTokens(episode: Episode): number {
  return episode.trajectories.flatMap(({ steps }) => steps).reduce((sum, { tokens }) => sum + tokens.length, 0);
}
