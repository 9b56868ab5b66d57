/** `hone score`: runs tasks of an experiment with a hosted model, to see whether its reward can teach anything. */
import { rmSync } from "node:fs";
import { resolveWorkflow } from "../agents/named/resolve-workflow.ts";
import type { Sample, SampleOptions, SampleRequest, Sampler } from "../backends/engine.ts";
import type { ComposedConfig } from "../config/compose.ts";
import { toYaml } from "../config/yaml/to-yaml.ts";
import { messageOf, UserError } from "../errors.ts";
import { openGateway } from "../gateway/gateway.ts";
import { rolloutGateway } from "../gateway/sessions/rollout-gateway.ts";
import { parseOnAgentError, runRollouts } from "../rollout/run-rollouts.ts";
import { createSamplingClient, rolloutSeed } from "../rollout/session/sampling-client.ts";
import { openJournal } from "../tracking/run-folder/journal.ts";
import { makeDatedFolder, openRunFolder } from "../tracking/run-folder/run-folder.ts";
import { validationMetrics } from "../trainer/evaluation/validate.ts";
import type { Experiment } from "../trainer/experiment.ts";
import type { Episode } from "../trajectories/types.ts";
import { type ProviderChat, providerChat, writeReply } from "./provider-chat.ts";
import type { Provider } from "./providers.ts";
import { describeScore, type Score, summarizeScore } from "./summary.ts";

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
