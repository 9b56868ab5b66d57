/**
 * Opens everything that a run needs, in order, and closes it in reverse order, also after an error: folder and loggers,
 * interrupts, engine, models, gateway, rollouts, and the state to continue from. `loop.ts` repeats the steps.
 */
import { basename, join, relative, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { isDeepStrictEqual } from "node:util";
import type { Workflow } from "../agents/types.ts";
import { openChat, openEngine } from "../backends/backends.ts";
import {
  type Capabilities,
  type Engine,
  type Learner,
  type LearnerSpec,
  loraTargets,
  type Sampler,
} from "../backends/engine.ts";
import { type Closers, createClosers } from "../base/closers.ts";
import { RunError, UserError } from "../base/errors.ts";
import type { Chat } from "../chat/types.ts";
import type { ComposedConfig } from "../config/compose.ts";
import type { Config } from "../config/schema.ts";
import { toYaml } from "../config/yaml.ts";
import { imageFetching, openRunGateway } from "../gateway/run-gateway.ts";
import { folderStore, mediaFolder } from "../images/images.ts";
import { visionOf } from "../rollout/session.ts";
import { checkSettings } from "../rules/check.ts";
import { consoleSubscriber } from "../tracking/console.ts";
import { type RunEvent, type Subscriber, subscribers } from "../tracking/events.ts";
import { watchHealth } from "../tracking/health.ts";
import { openJournal } from "../tracking/journal.ts";
import { openPng, plotsSubscriber } from "../tracking/plots.ts";
import { createRunFolder, openRunFolder, type RunFolder, runFilesSubscriber } from "../tracking/run-folder.ts";
import { type ClientName, sidecarLogger } from "../tracking/sidecar-logger.ts";
import { tensorboardSubscriber } from "../tracking/tensorboard.ts";
import { openCheckpointSaver } from "./checkpoints.ts";
import { type Experiment, scriptFacts, type TrainOptions } from "./experiment.ts";
import { watchUnhandledErrors } from "./failures.ts";
import { createRun, type Run } from "./loop.ts";
import { compileOptions, otherModels, type RunOptions } from "./options.ts";
import { createRecorder } from "./record.ts";
import { restore, restoreReference } from "./resume.ts";
import { openRewardModels } from "./reward-models.ts";
import { openRollouts, type Waiting } from "./rollouts.ts";
import type { Models, Progress } from "./state.ts";
import { openTeachers } from "./teachers.ts";

export interface OpenRunOptions extends TrainOptions {
  /** Keeps the results of a measurement in this folder. */
  results?: string;
  recoveries: number;
}

type Prepared = Experiment<unknown> & { workflow: Workflow<unknown> };

export async function openRun(
  experiment: Prepared,
  composed: ComposedConfig,
  compiled: RunOptions,
  options: OpenRunOptions,
): Promise<{ run: Run; close(): Promise<void> }> {
  const closers = createClosers();
  try {
    return { run: await open(experiment, composed, compiled, options, closers), close: closers.close };
  } catch (error) {
    return await closers.abandon(error);
  }
}

async function open(
  experiment: Prepared,
  composed: ComposedConfig,
  compiled: RunOptions,
  options: OpenRunOptions,
  closers: Closers,
): Promise<Run> {
  const { config, storedConfig } = composed;
  const trains = !config.rllm.trainer.val_only;
  const folder = openFolder(config, options.results);
  let begun = false;
  // After a failure that is not a mistake of the user, the logs stay.
  if (folder) closers.add((cause) => (begun || cause instanceof RunError ? folder.close() : folder.abandon()));

  const listeners = subscribers();
  const emit = listeners.event;
  const warn = (text: string) => emit({ type: "warning", text });
  const waitingFor: (() => readonly Waiting[])[] = [];
  const journal = folder && openJournal(folder.path, { onProblem: warn });
  if (journal) listeners.add(journal);
  closers.add(() => listeners.close());
  const out = typeof options.evaluate === "object" && options.evaluate.json ? process.stderr : process.stdout;
  listeners.add(...(await openLoggers({ config, storedConfig, folder, waitingFor, emit, warn, out })));
  const datasets = [experiment.train, experiment.validation].filter((dataset) => dataset !== undefined);
  for (const note of datasets.flatMap(({ notes = [] }) => notes)) warn(note);

  const abort = new AbortController();
  const { signal } = abort;
  const interrupt = listenForInterrupt(
    () => {
      if (!trains || !begun) return false;
      warn("stopping after this step and saving; Ctrl-C again stops at once");
      return true;
    },
    async () => {
      abort.abort(new Error("stopped"));
      // Removes an empty folder; resources that do not close in time stay open.
      if (!begun) await Promise.race([closers.close(), sleep(1000)]).catch(() => {});
    },
  );
  closers.add(() => interrupt.dispose());
  const unhandled = watchUnhandledErrors(warn, folder?.path);
  closers.add(() => unhandled.dispose());

  const { engine, chat } = options.engine ?? (await openOwnEngine(composed, compiled, folder, emit, closers));
  waitingFor.push(engine.waitingFor);
  // Rollouts would fail one by one, and be retried.
  void engine.died?.then((reason) => abort.abort(reason));
  const checkedFor = (capabilities: Capabilities) => {
    const check = (known: Capabilities) =>
      checkSettings(composed, { capabilities: known, script: scriptFacts(experiment) });
    const known = check(compiled.capabilities).warnings.map(({ text }) => text);
    const checked = check(capabilities);
    for (const { text } of checked.warnings) if (!known.includes(text)) warn(text);
    return checked.composed;
  };
  // A remote service may support less than its descriptor says.
  const runOptions = isDeepStrictEqual(engine.capabilities, compiled.capabilities)
    ? compiled
    : compileOptions(checkedFor(engine.capabilities), engine.capabilities, experiment);
  for (const text of runOptions.warnings) warn(text);

  const models = await openModels(engine, runOptions.models, options.engine ? closers : undefined);
  const { logprobs } = models.sampler;
  if (logprobs !== engine.capabilities.sampleLogprobs) {
    checkedFor({ ...engine.capabilities, sampleLogprobs: logprobs });
  }
  const rewardModels = runOptions.rewardModels && (await openRewardModels(engine, runOptions.rewardModels, warn));
  const vision = visionOf(engine, imageFetching(config, warn));
  if (config.data.mixed_mm_data && typeof vision === "string") {
    throw new UserError(`data.mixed_mm_data=true, but ${vision}`, { hint: "use a vision-language model" });
  }
  if (runOptions.teaching && trains) {
    const closeLater = (close: () => Promise<void>) => closers.add(close);
    const parts = { engine, learner: models.learner, policy: config.model.name, chat, vision, experiment, warn };
    models.teaching = await openTeachers({ ...parts, closeLater }, runOptions.teaching);
  }

  const gatewayCounts: Record<string, number> = {};
  const model = engine.model.name;
  const gateway = await openRunGateway({ config, folder, chat, vision, model, warn, counts: gatewayCounts });
  closers.add(() => gateway.close());
  const health = watchHealth(config);
  const { recoveries } = options;
  const recorder = createRecorder(
    { engine, gatewayCounts, chat, folder, recoveries, journal, health, emit },
    runOptions.record,
  );
  const contextWindow = longestSequence(engine, models);
  const { workflow } = experiment;
  const rollouts = openRollouts(
    { workflow, sampler: models.sampler, chat, vision, gateway, contextWindow, rewardModels, signal, emit },
    runOptions.rollouts,
  );
  waitingFor.unshift(rollouts.waitingFor);

  const checkpoints = folder?.checkpoints;
  const startFrom = config.training.start_from ?? undefined;
  const weights = options.checkpoint ?? startFrom;
  const found = await restore({ models, checkpoints, trains, storedConfig, emit }, runOptions.resume, weights);
  if (startFrom !== undefined) await restoreReference(models.reference, config, startFrom, warn);
  const progress: Progress = found ?? { step: 0, draws: 0, badSteps: 0 };
  const { train: tasks } = experiment;
  const { vocabularySize } = engine.model;
  const source = await experiment.source?.open(
    { tasks, chat, vision, models, options: runOptions, contextWindow, vocabularySize, warn },
    config,
  );
  if (folder) {
    const { discarded } = folder.rewind(found ? progress.step : null);
    for (const { metrics } of folder.history()) health(metrics);
    if (discarded > 0) warn(`${discarded} lines of metrics after the checkpoint were moved to metrics.discarded.jsonl`);
    folder.keepTokenizer(engine.model.directory);
    folder.writeConfig(toYaml(composed.stored, composed.origins, { unresolved: true }), composed.origins);
    for (const dataset of datasets) dataset.keep?.(folder.path);
  }

  begun = true;
  if (folder) options.onBegin?.(folder.path);
  emit({
    type: "run-start",
    folder: folder ? relative(process.cwd(), folder.path) : "",
    totalSteps: runOptions.plan.totalSteps,
    step: progress.step,
    history: folder?.history() ?? [],
    text: [describeModel(engine, models.sampler, config), ...describeMemory(engine), runOptions.plan.arithmetic],
  });
  return createRun({
    options: runOptions,
    tasks,
    validationTasks: experiment.validation,
    models,
    rollouts,
    source,
    recorder,
    folder,
    checkpoints:
      folder && openCheckpointSaver({ folder: folder.checkpoints, models, storedConfig, emit }, runOptions.checkpoints),
    progress,
    signal,
    interrupt,
    unhandled,
    canMerge: engine.capabilities.exports.includes("merged"),
    emit,
  });
}

/** @param results of a measurement: the folder to keep them in */
function openFolder(config: Config, results: string | undefined): RunFolder | undefined {
  const { run_dir, project_name: project, experiment_name: experiment, val_only } = config.rllm.trainer;
  if (results !== undefined) return openRunFolder(results);
  if (val_only) return undefined;
  return run_dir === null ? createRunFolder({ project, experiment }) : openRunFolder(run_dir);
}

async function openOwnEngine(
  composed: ComposedConfig,
  runOptions: RunOptions,
  folder: RunFolder | undefined,
  emit: (event: RunEvent) => void,
  closers: Closers,
): Promise<{ engine: Engine; chat: Chat }> {
  const warn = (text: string) => emit({ type: "warning", text });
  const engine = await openEngine(composed, {
    ...(folder
      ? { logFile: folder.workerLog, folder: resolve(folder.path), media: folderStore(join(folder.path, mediaFolder)) }
      : {}),
    trains: composed.config.rllm.trainer.val_only ? undefined : { others: otherModels(runOptions, composed.config) },
    onStatus: (text) => emit({ type: "setup-status", text }),
    warn,
  });
  closers.add(() => engine.close());
  return { engine, chat: await openChat(engine.model.directory, composed.config, warn) };
}

/** @param closers of an engine that outlives the run; the run's own engine closes its models itself */
async function openModels(engine: Engine, specs: RunOptions["models"], closers: Closers | undefined): Promise<Models> {
  const closeLater = (learner: Learner) => {
    closers?.add(() => learner.close());
    return learner;
  };
  const open = async (spec: LearnerSpec) => closeLater(await engine.createLearner(spec));
  const { sampler, learner } = await engine.createPolicy(specs.policy);
  closeLater(learner);
  return {
    sampler,
    learner,
    reference: specs.reference && (await open(specs.reference)),
    critic: specs.critic && (await open(specs.critic)),
  };
}

/** A run's sequences fit all of its models, and the servers that sample. */
function longestSequence({ model }: Engine, { sampler, learner, reference, critic }: Models): number {
  return Math.min(model.maxLength, ...[sampler, learner, reference, critic].flatMap((part) => part?.maxLength ?? []));
}

function describeMemory({ memory }: Engine): string[] {
  if (memory === undefined) return [];
  return [`training takes ${memory.text}${memory.fits ? "" : "; longer sequences than fit will end the run"}`];
}

function describeModel({ model }: Engine, { servers }: Sampler, { model: wanted }: Config): string {
  const millions = (model.parameters / 1e6).toFixed(1);
  const targets = loraTargets.filter((part) => wanted[`train_${part}`]).join(", ");
  const trained = wanted.lora_rank === 0 ? "all weights" : `LoRA of rank ${wanted.lora_rank} on ${targets}`;
  const { attention, attentionReason: reason } = model;
  const rows = reason === undefined ? "" : `; ${attention === "padded" ? "padded attention: " : ""}${reason}`;
  const sampled = servers === undefined ? "" : `; sampled by ${servers}`;
  return `${model.name}: ${model.architecture}, ${millions}M parameters, ${model.dtype} on ${model.device}, ${trained}${rows}${sampled}`;
}

// Loggers: those that the configuration names, and those of the run folder.

interface LoggerContext {
  config: Config;
  storedConfig: Readonly<Record<string, unknown>>;
  /** Undefined if nothing is kept. */
  folder: RunFolder | undefined;
  waitingFor: readonly (() => readonly Waiting[])[];
  emit: (event: RunEvent) => void;
  warn: (text: string) => void;
  /** Where the console writes. */
  out: NodeJS.WriteStream;
}

type Logger = Config["rllm"]["trainer"]["logger"][number];

const openers: Record<Logger, (context: LoggerContext) => Promise<Subscriber | undefined>> = {
  console: async ({ waitingFor, out }) => consoleSubscriber({ waitingFor, out }),
  tensorboard: async ({ config, folder }) =>
    folder && tensorboardSubscriber(config.rllm.trainer.tensorboard_dir ?? join(folder.path, "tensorboard")),
  wandb: (context) => openClient("wandb", context),
  mlflow: (context) => openClient("mlflow", context),
  trackio: (context) => openClient("trackio", context),
};

async function openClient(
  client: ClientName,
  { config, storedConfig, folder, warn }: LoggerContext,
): Promise<Subscriber | undefined> {
  if (!folder) return undefined;
  const { startSidecar, clientInstallCommand } = await import("../tracking/start-sidecar.ts");
  return sidecarLogger({
    client,
    start: () => startSidecar(client, join(folder.path, `${client}.log`)),
    installCommand: clientInstallCommand(client),
    entity: config.rllm.trainer.wandb_entity,
    project: config.rllm.trainer.project_name,
    name: config.rllm.trainer.experiment_name,
    id: basename(folder.path),
    config: storedConfig,
    directory: folder.path,
    onWarning: warn,
  });
}

/** @throws UserError if a logger cannot start */
async function openLoggers(context: LoggerContext): Promise<Subscriber[]> {
  const { config, folder } = context;
  const { logger, val_only, plot_every, plot_dir } = config.rllm.trainer;
  const opened: Subscriber[] = folder ? [runFilesSubscriber(folder)] : [];
  if (folder && !val_only && plot_every > 0) {
    const directory = plot_dir ?? join(folder.path, "plots");
    opened.push(
      plotsSubscriber({ directory, every: plot_every, toPng: await openPng(context.warn), emit: context.emit }),
    );
  }
  try {
    // A measurement has no curves.
    for (const name of new Set(val_only ? logger.filter((one) => one === "console") : logger)) {
      const subscriber = await openers[name](context);
      if (subscriber) opened.push(subscriber);
    }
  } catch (error) {
    for (const subscriber of opened) await subscriber.close();
    throw error;
  }
  return opened;
}

// Ctrl-C: the first one finishes the step and saves, the second one stops at once. Before the first step, the first one stops at once.

export interface Interrupt {
  /** Set by the first Ctrl-C (or SIGTERM): finish the current step, save, stop. */
  readonly requested: boolean;
  dispose(): void;
}

/**
 * @param onFirst called once, to report what happens; if it is undefined or returns false, the first one stops at once
 * @param onSecond must end the process's children before the process ends
 */
export function listenForInterrupt(onFirst: (() => boolean) | undefined, onSecond: () => Promise<void>): Interrupt {
  const handle = (signal: NodeJS.Signals) => {
    const isFirst = !interrupt.requested;
    interrupt.requested = true;
    if (isFirst && onFirst?.()) return;
    void onSecond().finally(() => process.exit(signal === "SIGTERM" ? 143 : 130));
  };
  const interrupt = {
    requested: false,
    dispose() {
      process.off("SIGINT", handle);
      process.off("SIGTERM", handle);
    },
  };
  process.on("SIGINT", handle);
  process.on("SIGTERM", handle);
  return interrupt;
}
