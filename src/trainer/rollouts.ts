/** Runs the experiment's workflow on tasks and collects the episodes. */
import type { Workflow } from "../agents/types.ts";
import type { NoVision, Vision } from "../chat/images.ts";
import type { Chat } from "../chat/types.ts";
import type { Task } from "../data/dataset.ts";
import { patchFetch, rolloutGateway } from "../gateway/sessions.ts";
import type { Gateway } from "../gateway/types.ts";
import { withoutStack } from "../rollout/outcome.ts";
import { type RunRolloutsOptions, runRollouts } from "../rollout/rollouts.ts";
import type { SampleQueue } from "../rollout/sample-queue.ts";
import { createSamplingClient, rolloutSeed, type SamplingClient } from "../rollout/session.ts";
import type { SamplingClientOptions } from "../rollout/types.ts";
import type { QueuedTask, RolloutChange, RunEvent } from "../tracking/events.ts";
import type { Episode } from "../trajectories/types.ts";
import { attributeFailure, causeOf, checkPrompts, summarizeWarnings } from "./failures.ts";
import { sampledTokens } from "./record.ts";
import { type RewardModels, rolesWithoutTrajectories, scoreEpisodes } from "./reward-models.ts";

export interface RolloutOptions {
  seed: number;
  /** Rollouts that run at the same time. */
  atOnce: number;
  limits: { maxPromptLength: number; maxLength: number };
  grouping: NonNullable<SamplingClientOptions["grouping"]>;
  /** Whether training repeats the experts of the sampler. */
  routing: boolean;
  /** Whether the configured sampling parameters override those in an agent's requests to the gateway. */
  enforceSampling: boolean;
  attempts: Pick<
    RunRolloutsOptions<unknown>,
    | "retryLimit"
    | "raiseOnError"
    | "onAgentError"
    | "timeoutSeconds"
    | "limits"
    | "maxSteps"
    | "warmQueueSize"
    | "shaping"
  >;
}

/** How tasks are attempted. */
export interface Attempts {
  purpose: "train" | "validate";
  /** Rollouts per task. */
  rollouts: number;
  sampling: SamplingClientOptions["defaults"] & { maxTokens: number };
}

interface Collection extends Attempts {
  tasks: readonly Task[];
  /** Counts from 1; 0 is before training. */
  step: number;
  /** The draw of the tasks, counted from 1 since training began; validation has none. */
  draw?: number;
  /** Number of each task's first rollout; default 0. */
  firstRollout?: number;
  /** How often these rollouts were run and dropped before; each time new replies are drawn. Default 0. */
  again?: number;
}

/** Shared by collections that run at the same time. */
interface Beside {
  queue: SampleQueue;
  /** This collection's place among them. */
  order: number;
  signal: AbortSignal;
}

/** One line about what the run waits for. */
export interface Waiting {
  what: string;
  seconds: number;
}

export interface Rollouts {
  /**
   * Runs a whole collection and reports its progress.
   * @throws UserError if all prompts are too long
   */
  collect(collection: Collection): Promise<Episode[]>;
  /** Runs a collection at the same time as others. */
  attempt(collection: Collection, beside: Beside, onEpisode: (episode: Episode) => void): Promise<Episode[]>;
  /** What the running rollouts wait for. */
  waitingFor(): Waiting[];
}

export interface RolloutParts {
  workflow: Workflow<unknown>;
  sampler: SamplingClientOptions["sampler"];
  chat: Chat;
  vision: Vision | NoVision;
  gateway: Gateway;
  /** The model's limit, in tokens. */
  contextWindow: number;
  rewardModels: RewardModels | undefined;
  signal: AbortSignal;
  emit(event: RunEvent): void;
}

export function openRollouts(parts: RolloutParts, options: RolloutOptions): Rollouts {
  const { chat, contextWindow, emit, gateway, sampler, workflow } = parts;
  const warn = (text: string) => emit({ type: "warning", text });
  const live = new Set<SamplingClient>();
  // Clients keep the `fetch` that they find when a workflow creates them.
  patchFetch();

  function openClient(collection: Collection, queue?: SampleQueue) {
    const { purpose, sampling, step, draw = step, again = 0 } = collection;
    const { maxTokens, ...defaults } = sampling;
    const redrawn = again === 0 ? [] : ["again", again];
    return createSamplingClient({
      sampler,
      chat,
      vision: parts.vision,
      defaults,
      limits: { ...options.limits, maxResponseLength: maxTokens, contextWindow },
      // Validation uses the same random draws at every step, so that its metrics change only with the weights.
      seedFor:
        purpose === "train"
          ? rolloutSeed(options.seed, "train", draw, ...redrawn)
          : rolloutSeed(options.seed, "validate"),
      grouping: options.grouping,
      routing: options.routing && purpose === "train",
      onEvent: (event) => emit({ type: "rollout", step, purpose, ...event }),
      queue,
    });
  }

  const reported = new Set<string>();

  async function attempt(
    collection: Collection,
    beside: Beside | undefined,
    onEpisode: (episode: Episode) => void,
  ): Promise<Episode[]> {
    const { purpose, tasks, rollouts, step, draw = step, firstRollout = 0, again = 0 } = collection;
    const client = openClient(collection, beside?.queue);
    const warnings = summarizeWarnings(warn, `step ${step}; details are in its file in episodes/`, reported);
    live.add(client);
    emit({ type: "rollouts-queued", step, purpose, tasks: queuedTasks(tasks, firstRollout, rollouts) });
    try {
      const ended = await runRollouts({
        ...options.attempts,
        tasks,
        n: rollouts,
        firstRollout,
        firstOrder: beside?.order ?? 0,
        workflow,
        purpose,
        client,
        nParallelTasks: options.atOnce,
        seed: options.seed,
        signal: beside?.signal ?? parts.signal,
        onEpisode(episode) {
          emit({ type: "rollout", step, purpose, ...ending(episode) });
          onEpisode(episode);
        },
        gateway: {
          open: (...opened) =>
            rolloutGateway(gateway, {
              prefix: `${purpose}-${draw}${again === 0 ? "" : `-again-${again}`}/`,
              enforceSampling: options.enforceSampling,
              metadata: { step },
            }).open(...opened),
        },
        onRetry: ({ taskId, rollout, attempt, failure }) => {
          const retried = { task: taskId, rollout, attempt, state: "retry", failure: withoutStack(failure) } as const;
          emit({ type: "rollout", step, purpose, ...retried });
          const cause = `${failureNames[failure.kind]}: ${failure.message}`;
          const text = `retrying rollout ${rollout} of ${taskId} after ${cause}`;
          warnings.add(`retries after ${cause}`, text, `retry ${failure.kind} ${causeOf(failure)}`);
        },
        onFailure: ({ taskId, rollout, failure, reward }) => {
          const worth = reward === null ? "unknown reward" : `reward ${reward} by rllm.workflow.on_agent_error`;
          const cause = `${failureNames[failure.kind]} (${worth}): ${failure.message}`;
          const text = `rollout ${rollout} of ${taskId} ended with ${cause}`;
          warnings.add(`rollouts ended with ${cause}`, text, `end ${failure.kind} ${worth} ${causeOf(failure)}`);
        },
        onLog: ({ taskId, rollout, text }) => {
          emit({ type: "rollout-log", text: `rollout ${rollout} of ${taskId}: ${text}` });
        },
        onTearDownProblem: ({ taskId, rollout, message }) => {
          warn(`tearing down rollout ${rollout} of ${taskId}: a function that it registered ${message}`);
        },
      });
      const episodes = attributeFailure(ended, warn);
      if (parts.rewardModels) {
        await scoreEpisodes(episodes, parts.rewardModels, (model, { taskId, rollout }, problem) => {
          const cause = `${model} gave no score, so the reward is unknown: ${problem}`;
          warnings.add(`rollouts: ${cause}`, `rollout ${rollout} of ${taskId}: ${cause}`);
        });
        warnOfRewards(parts.rewardModels, episodes);
      }
      return episodes;
    } finally {
      live.delete(client);
      warnings.end();
    }
  }

  const warned = new Set<string>();
  let retriesSeen = 0;

  function warnOfRewards(rewardModels: RewardModels, episodes: readonly Episode[]) {
    for (const role of rolesWithoutTrajectories(rewardModels, episodes)) {
      if (!warned.has(role)) warn(`rllm.reward has a weight for the role "${role}", which no rollout of this step has`);
      warned.add(role);
    }
    const retries = rewardModels.models.reduce((sum, { scorer }) => sum + (scorer.retries ?? 0), 0);
    if (retries > retriesSeen) warn(`${retries - retriesSeen} requests to reward model servers were repeated`);
    retriesSeen = retries;
  }

  return {
    attempt,
    async collect(collection) {
      const { step } = collection;
      const total = collection.tasks.length * collection.rollouts;
      let done = 0;
      let tokens = 0;
      const report = () => emit({ type: "rollout-progress", step, done, total, tokens });
      report();
      const episodes = await attempt(collection, undefined, (episode) => {
        done++;
        tokens += sampledTokens(episode);
        report();
      });
      checkPrompts(episodes, warn);
      return episodes;
    },
    waitingFor: () =>
      [...live]
        .flatMap((client) => client.waitingFor())
        .map(({ taskId, rollout, what, seconds }) => ({ what: `rollout ${rollout} of ${taskId}: ${what}`, seconds })),
  };
}

/** A task that occurs several times is queued several times, with consecutive numbers for its rollouts. */
function queuedTasks(tasks: readonly Task[], firstRollout: number, count: number): QueuedTask[] {
  const next = new Map<string, number>();
  return tasks.map(({ id }) => {
    const first = next.get(id) ?? firstRollout;
    next.set(id, first + count);
    return { task: id, first, count };
  });
}

function ending({ taskId, rollout, retries, termination, trajectories, failure }: Episode): RolloutChange {
  const reward = trajectories[0]?.reward ?? null;
  const ended = { task: taskId, rollout, attempt: retries, state: "end", termination, reward } as const;
  return failure ? { ...ended, failure: withoutStack(failure) } : ended;
}

const failureNames = {
  model: "an unusable reply of the model",
  agent: "an error of the agent",
  reward: "an error of the reward",
  infrastructure: "an infrastructure failure",
} as const;
