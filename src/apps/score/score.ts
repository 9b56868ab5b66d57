/** `hone score`: runs tasks of an experiment with a hosted model, and says whether its reward can teach anything. */
import { rmSync } from "node:fs";
import { relative } from "node:path";
import type { Sample, SampleOptions, SampleRequest, Sampler } from "../../backends/engine.ts";
import { messageOf, UserError } from "../../base/errors.ts";
import { append, mean, standardDeviation } from "../../base/values.ts";
import { textOf } from "../../chat/messages.ts";
import type { ComposedConfig } from "../../config/compose.ts";
import { toYaml } from "../../config/yaml.ts";
import { openGateway } from "../../gateway/gateway.ts";
import { rolloutGateway } from "../../gateway/sessions.ts";
import { parseOnAgentError, runRollouts } from "../../rollout/rollouts.ts";
import { createSamplingClient, rolloutSeed } from "../../rollout/session.ts";
import { formatNumber } from "../../tracking/events.ts";
import { openJournal } from "../../tracking/journal.ts";
import { makeDatedFolder, openRunFolder } from "../../tracking/run-folder.ts";
import { type AttemptSummary, summarizeAttempts } from "../../trainer/evaluate.ts";
import type { Experiment } from "../../trainer/experiment.ts";
import { workflowMetrics } from "../../trainer/record.ts";
import { validationMetrics, verdictOf } from "../../trainer/validate.ts";
import { resolveWorkflow } from "../../trainer/workflow.ts";
import { type Episode, lastStep } from "../../trajectories/types.ts";
import { type Provider, type ProviderChat, providerChat, writeReply } from "./providers.ts";

export interface ScoreOptions {
  provider: Provider;
  tasks: number;
  rollouts: number;
  concurrency: number;
  /** Prices in dollars for a million tokens. */
  price?: { input: number; output: number } | undefined;
  /** The run folder; default `runs/score-{experiment}-{date}`. */
  output?: string | undefined;
  onEpisode?: (ended: number, all: number) => void;
  warn: (text: string) => void;
  signal?: AbortSignal;
}

/** Tokens are characters here, and the model's limits are the provider's. */
const unlimited = 2 ** 40;

/**
 * Writes a run folder with one validation, that of step 0. If it is stopped, the rollouts that have ended are its result.
 * @throws UserError for settings that only a model with weights has
 */
export async function score(
  experiment: Experiment<unknown>,
  { storedConfig: _, ...composed }: ComposedConfig,
  options: ScoreOptions,
): Promise<Score> {
  const { config } = composed;
  const { rllm, data } = config;
  const { provider, rollouts, warn } = options;
  if (rllm.reward.model !== null && rllm.reward.model.length > 0) {
    throw new UserError("rllm.reward.model names reward models, which hone score does not load", {
      hint: "add rllm.reward.model=null to score the experiment's own reward alone",
    });
  }
  const { temperature, top_p: topP, top_k: topK, min_p: minP } = rllm.rollout.train;
  if (topK > 0 || minP > 0) warn("top_k and min_p are not sent: providers do not accept them");
  const workflow = await resolveWorkflow(experiment, rllm);
  const { train } = experiment;
  for (const note of train.notes ?? []) warn(note);
  const picked = spread(train.size, Math.min(options.tasks, train.size));
  const chat = providerChat();
  const usage = { calls: 0, retries: 0, input: 0, output: 0, overlong: 0 };
  const sampler = providerSampler(provider, chat, { temperature, topP }, (spent, retries) => {
    usage.calls++;
    usage.retries += retries;
    usage.input += spent.input;
    usage.output += spent.output;
    if (spent.output > data.max_response_length) usage.overlong++;
  });
  const client = createSamplingClient({
    sampler,
    chat,
    vision: "hone score does not send images so far",
    defaults: { temperature, topP, topK: -1, minP: 0 },
    limits: { maxPromptLength: unlimited, maxResponseLength: unlimited },
    seedFor: rolloutSeed(rllm.trainer.seed),
    grouping: { groupBy: rllm.sdk.processing.groupby_key, nameBy: rllm.sdk.processing.traj_name_key },
    flushMs: 0,
  });
  const { project_name: project, experiment_name: name } = rllm.trainer;
  // Not runs/latest, whose model is served, exported and trained further.
  const folder = openRunFolder(
    options.output ?? makeDatedFolder({ project: "score", experiment: `${project}-${name}` }),
  );
  const gateway = await openGateway({
    chat,
    model: provider.name,
    unenforceable: rllm.gateway.unenforceable,
    log: warn,
  });
  const journal = openJournal(folder.path, { onProblem: warn });
  const all = picked.length * rollouts;
  const finished: Episode[] = [];
  let stopped: string | null = null;
  try {
    // The viewer shows the model that answered, and no backend.
    const stored = {
      ...composed.stored,
      model: { ...(composed.stored.model as object), name: provider.name },
      rllm: { ...(composed.stored.rllm as object), backend: null },
    };
    const origins = new Map(composed.origins).set("model.name", { kind: "flag", text: `--model ${provider.name}` });
    folder.writeConfig(toYaml(stored, origins, { unresolved: true }), origins);
    const running = runRollouts({
      tasks: picked.map((index) => train.task(index)),
      n: rollouts,
      workflow,
      client,
      purpose: "train",
      nParallelTasks: options.concurrency,
      retryLimit: rllm.workflow.retry_limit,
      onAgentError: parseOnAgentError(rllm.workflow.on_agent_error),
      timeoutSeconds: rllm.workflow.workflow_args.timeout,
      maxSteps: rllm.agent.max_steps,
      warmQueueSize: rllm.workflow.warm_queue_size,
      seed: rllm.trainer.seed,
      gateway: rolloutGateway(gateway, { prefix: "score/", enforceSampling: false }),
      raiseOnError: false,
      onEpisode(episode) {
        finished.push(episode);
        options.onEpisode?.(finished.length, all);
      },
      onLog: ({ taskId, rollout, text }) => folder.log(`${taskId}:${rollout} ${text}`),
      ...(options.signal ? { signal: options.signal } : {}),
    });
    // What has been paid for is reported also if the provider fails or somebody presses Ctrl-C.
    const episodes = await running.catch((error: unknown) => {
      if (finished.length === 0) throw error;
      stopped = `stopped after ${finished.length} of ${all} rollouts: ${messageOf(error)}`;
      return finished;
    });
    const summary = summarizeScore(episodes, {
      usage,
      stopped,
      price: options.price,
      model: provider.name,
      folder: folder.path,
    });
    folder.writeEpisodes(0, episodes, "validation");
    const metrics = { ...validationMetrics(episodes, train.name, rollouts), ...summary.metrics };
    folder.appendMetrics({ step: 0, kind: "validation", time: new Date().toISOString(), metrics });
    const reason = stopped === null ? "done" : "stopped";
    journal.event({ type: "run-end", reason, report: describeScore(summary) });
    return summary;
  } finally {
    await gateway.close();
    await journal.close();
    folder.close();
    if (finished.length === 0 && options.output === undefined) rmSync(folder.path, { recursive: true, force: true });
  }
}

/** Indices of the whole dataset: the first rows may be the easiest. */
const spread = (size: number, count: number) =>
  Array.from({ length: count }, (_, index) => Math.floor((index * size) / count));

/**
 * A call's own sampling parameters are sent; those that are the provider's defaults (temperature and top_p of 1) are not,
 * because reasoning models refuse them.
 */
function providerSampler(
  provider: Provider,
  chat: ProviderChat,
  defaults: { temperature: number; topP: number },
  onUsage: (usage: { input: number; output: number }, retries: number) => void,
): Pick<Sampler, "sample" | "separate"> {
  async function answer(
    { prompt, params, signal: own }: SampleRequest,
    signal: AbortSignal | undefined,
  ): Promise<Sample> {
    const { temperature, topP, maxTokens, stopStrings } = params;
    const stop = AbortSignal.any([signal, own].filter((one) => one !== undefined));
    const { message, cutOff, usage, retries } = await provider.ask({
      ...chat.read(prompt),
      ...(temperature !== 1 || defaults.temperature !== 1 ? { temperature } : {}),
      ...(topP !== 1 || defaults.topP !== 1 ? { topP } : {}),
      ...(maxTokens < unlimited ? { maxTokens } : {}),
      stop: stopStrings,
      signal: stop,
    });
    onUsage(usage, retries);
    const tokens = Int32Array.from([...chat.encode(writeReply(message)), ...(cutOff ? [] : [chat.eosId])]);
    const stopReason = cutOff ? "length" : "stop";
    return { request: 0, tokens, logprobs: new Float32Array(tokens.length), stopReason, policyVersion: -1 };
  }
  return {
    separate: true,
    async *sample(requests: readonly SampleRequest[], { signal }: SampleOptions = {}) {
      const running = new Map(
        requests.map((request, index) => [
          index,
          answer(request, signal).then((sample) => ({ ...sample, request: index })),
        ]),
      );
      while (running.size > 0) {
        const finished = await Promise.race(running.values());
        running.delete(finished.request);
        yield finished;
      }
    },
  };
}

// What a score says about an experiment: its reward, whether rewards differ within tasks, what it costs. Pure.

interface Usage {
  calls: number;
  retries: number;
  /** Tokens, as the provider counts them. */
  input: number;
  output: number;
  /** Replies that are longer than `data.max_response_length`. */
  overlong: number;
}

export interface Score extends AttemptSummary {
  model: string;
  /** Absolute. */
  folder: string;
  /** Tasks by how their known rewards spread: only those that differ teach an algorithm that compares rollouts. */
  differing: number;
  same: number;
  /** Mean over tasks of the standard deviation of their rewards. */
  spread: number;
  /** How many rollouts have no reward, by the reason. */
  failures: Record<string, number>;
  usage: Usage;
  /** Why only some of the rollouts ran. */
  stopped: string | null;
  /** Dollars; null without prices. */
  cost: number | null;
  best: Excerpt[];
  worst: Excerpt[];
  metrics: Record<string, number>;
}

interface Excerpt {
  id: string;
  reward: number;
  prompt: string;
  reply: string;
  reason: string | null;
}

function summarizeScore(
  episodes: readonly Episode[],
  {
    usage,
    stopped,
    price,
    model,
    folder,
  }: Pick<Score, "usage" | "stopped" | "model" | "folder"> & { price: { input: number; output: number } | undefined },
): Score {
  const attempts = episodes.map((episode) => ({ task: episode.taskId, tokens: 0, ...verdictOf(episode) }));
  const known = episodes.flatMap((episode) => {
    const { reward } = verdictOf(episode);
    return reward === null ? [] : [{ episode, reward }];
  });
  const byTask = new Map<string, number[]>();
  for (const { episode, reward } of known) append(byTask, episode.taskId, reward);
  const deviations = [...byTask.values()].filter((all) => all.length > 1).map((all) => standardDeviation(all));
  const differing = deviations.filter((one) => one > 1e-9).length;
  const failures: Record<string, number> = {};
  for (const episode of episodes) {
    const { failure, explanation } = episode;
    if (failure === undefined && verdictOf(episode).reward !== null) continue;
    const why = failure?.message ?? `the reward is unknown${explanation ? `: ${explanation}` : ""}`;
    failures[why] = (failures[why] ?? 0) + 1;
  }
  const sorted = known.toSorted((left, right) => right.reward - left.reward);
  const spread = deviations.length === 0 ? 0 : mean(deviations);
  const cost = price === undefined ? null : (usage.input * price.input + usage.output * price.output) / 1e6;
  return {
    ...summarizeAttempts(attempts),
    ...{ model, folder, differing, same: deviations.length - differing, spread, failures, usage, stopped, cost },
    best: ofTwoTasks(sorted).map(excerpt),
    worst: ofTwoTasks(sorted.toReversed()).map(excerpt),
    metrics: {
      "score/tasks_with_different_rewards": differing,
      "score/reward_std_within_task": spread,
      "score/calls": usage.calls,
      "score/input_tokens": usage.input,
      "score/output_tokens": usage.output,
      ...(cost === null ? {} : { "score/cost": cost }),
      ...workflowMetrics(episodes),
    },
  };
}

/** The first, and the first of another task. */
function ofTwoTasks<Graded extends { episode: Episode }>(graded: readonly Graded[]): Graded[] {
  const [first] = graded;
  const other = graded.find(({ episode }) => episode.taskId !== first?.episode.taskId);
  return [first, other].filter((one) => one !== undefined);
}

function excerpt({ episode, reward }: { episode: Episode; reward: number }): Excerpt {
  const { text = "", messages = [] } = lastStep(episode.trajectories) ?? {};
  const asked = messages.findLast(({ role }) => role === "user")?.content ?? "";
  return {
    ...{ id: episode.id, reward, reply: text, reason: episode.explanation ?? null },
    prompt: textOf(asked),
  };
}

const shownMetrics = 20;

export function reportScore(score: Score): string[] {
  const path = relative(process.cwd(), score.folder) || score.folder;
  return [...describeScore(score), "", `the run is in ${path}; npx hone-rl view ${path} shows every reply`];
}

/** The report as the run folder keeps it. */
function describeScore(score: Score): string[] {
  const { reward, tasks, rollouts, unknown, model, usage, cost } = score;
  const shown =
    reward === null
      ? "unknown"
      : `${formatNumber(reward.mean)}${reward.standardError === null ? "" : ` ± ${formatNumber(reward.standardError)}`}`;
  const metrics = Object.entries(score.metrics).filter(([name]) => name.startsWith("batch/"));
  const price =
    cost === null
      ? "; --price INPUT,OUTPUT (dollars for a million tokens) shows the cost"
      : `: $${cost.toPrecision(3)}`;
  return [
    "",
    ...(score.stopped === null ? [] : [score.stopped]),
    `${model}: reward ${shown} over ${tasks} tasks, ${rollouts} rollouts${unknown === 0 ? "" : `, of which ${unknown} have no known reward`}`,
    ...metrics
      .slice(0, shownMetrics)
      .map(([name, value]) => `  ${shorten(name.slice("batch/".length))} ${formatNumber(value)}`),
    ...(metrics.length > shownMetrics ? [`  and ${metrics.length - shownMetrics} other metrics`] : []),
    signal(score),
    `${usage.calls} calls of the model, ${usage.input} input and ${usage.output} output tokens${price}`,
    ...(usage.overlong === 0
      ? []
      : [`${usage.overlong} replies are longer than data.max_response_length, at which training cuts them off`]),
    ...Object.entries(score.failures)
      .slice(0, 5)
      .map(([message, count]) => `failed ${count}x: ${shorten(message)}`),
    ...score.best.flatMap((one) => show("best", one)),
    ...score.worst.flatMap((one) => show("worst", one)),
  ];
}

/** Whether algorithms that compare the rollouts of a task can learn from these rewards. */
function signal({ differing, same, spread, reward, unknown, rollouts }: Score): string {
  const compared = differing + same;
  if (reward === null) return "no reward is known: fix the reward first";
  if (compared === 0) return "no task has two known rewards, so nothing can be compared: use --rollouts 4";
  const share = `${differing} of ${compared} tasks have rewards that differ (standard deviation within a task: ${formatNumber(spread)})`;
  if (differing > 0) {
    const worth =
      differing / compared >= 0.25
        ? "there is something to learn from"
        : "little to learn from: most tasks are too easy or too hard for this model";
    return `${share}: ${worth}${unknown / rollouts > 0.2 ? "; but many rewards are unknown" : ""}`;
  }
  if (reward.mean >= 1 - 1e-9)
    return `${share}: every reply gets the full reward; use harder tasks, or a stricter reward`;
  return `${share}: nothing to learn from; give partial credit, or easier tasks`;
}

const show = (what: string, { id, reward, prompt, reply, reason }: Excerpt): string[] => [
  "",
  `${what}: ${formatNumber(reward)}  ${id}${reason === null ? "" : `  (${shorten(reason)})`}`,
  `  > ${shorten(prompt)}`,
  `  < ${shorten(reply)}`,
];

function shorten(text: string): string {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length <= 200 ? line : `${line.slice(0, 120)} ... ${line.slice(-70)}`;
}
