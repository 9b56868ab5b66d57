/** Opens everything a run needs, in order, and closes what was opened in the opposite order whatever happens. */
import { relative } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import type { Workflow } from "../agents/types.ts";
import { needsReference, readsEntropy } from "../algorithms/policy-loss.ts";
import type { Engine, Learner, LearnerSpec } from "../backends/engine.ts";
import { adapterSpec, openEngine } from "../backends/open-engine.ts";
import { openChat } from "../chat/open-chat.ts";
import type { Chat } from "../chat/types.ts";
import type { ComposedConfig } from "../config/compose.ts";
import type { Config } from "../config/schema.ts";
import { toYaml } from "../config/to-yaml.ts";
import type { RunEvent } from "../tracking/events.ts";
import { subscribers } from "../tracking/events.ts";
import { watchHealth } from "../tracking/health.ts";
import { createRunFolder, openRunFolder, type RunFolder } from "../tracking/run-folder.ts";
import { checkAsync } from "./async-options.ts";
import { checkCredit } from "./credit-options.ts";
import { criticSpec, needsCritic } from "./critic-options.ts";
import type { Experiment } from "./experiment.ts";
import { listenForInterrupt } from "./interrupt.ts";
import { openLoggers } from "./loggers.ts";
import {
  checkSamplerLogprobs,
  correctionOptions,
  klControllerOptions,
  policyLossOptions,
  requireOutputs,
} from "./loss-options.ts";
import { openRunGateway } from "./open-gateway.ts";
import type { Plan } from "./plan.ts";
import { restore } from "./restore.ts";
import type { Run, Waiting } from "./run.ts";
import { watchStrayErrors } from "./stray-errors.ts";
import type { TrainOptions } from "./train.ts";

export interface OpenedRun {
  run: Run;
  close(): Promise<void>;
}

export async function openRun(
  experiment: Experiment<unknown> & { workflow: Workflow<unknown> },
  composed: ComposedConfig,
  plan: Plan,
  options: TrainOptions & { results?: string; recoveries?: number },
): Promise<OpenedRun> {
  const { config, storedConfig } = composed;
  const { val_only } = config.rllm.trainer;
  const closers: (() => Promise<void> | void)[] = [];
  /** One that fails keeps none of the others open; the first failure is told. */
  const close = async () => {
    const failures: unknown[] = [];
    for (const closer of closers.splice(0).reverse()) {
      try {
        await closer();
      } catch (error) {
        failures.push(error);
      }
    }
    if (failures.length > 0) throw failures[0];
  };
  const abort = new AbortController();
  let watched: (() => Waiting[]) | undefined;
  try {
    const folder = openFolder(config, options.results);
    let begun = false;
    if (folder) closers.push(() => (begun ? folder.close() : folder.abandon()));
    let engine: Engine | undefined;
    const waitingFor = () => [...(watched?.() ?? []), ...(engine?.waitingFor() ?? [])];
    const warn = (text: string) => emit({ type: "warning", text });
    const out = typeof options.evaluate === "object" && options.evaluate.json ? process.stderr : process.stdout;
    const listeners = subscribers(await openLoggers({ config, storedConfig, folder, waitingFor, warn, out }));
    closers.push(() => listeners.close());
    const emit = (event: RunEvent) => listeners.event(event);
    for (const { notes = [] } of [experiment.train, ...(experiment.validation ? [experiment.validation] : [])]) {
      for (const note of notes) warn(note);
    }

    const interrupt = listenForInterrupt(
      () => {
        if (val_only || !begun) return false;
        warn("stopping after this step and saving; Ctrl-C again stops at once");
        return true;
      },
      async () => {
        abort.abort(new Error("stopped"));
        // What was opened so far goes, and with it a folder that holds nothing; what does not end in time is left.
        if (!begun) await Promise.race([close(), sleep(1000)]).catch(() => {});
      },
    );
    closers.push(() => interrupt.dispose());
    const strays = watchStrayErrors(warn, folder?.path);
    closers.push(() => strays.dispose());

    const opened = options.engine ?? (await openOwnEngine(config, folder, emit, closers));
    engine = opened.engine;
    checkCredit(config, experiment.estimators, engine.capabilities);
    for (const text of checkAsync(composed, experiment, engine.capabilities)) warn(text);
    const comparesWithBase = checkLoss(config, experiment, engine);
    // An engine of the run's own ends with all that it holds.
    const closeLater = (learner: Learner) => {
      if (options.engine) closers.push(() => learner.close());
      return learner;
    };
    const { sampler, learner } = await opened.engine.createPolicy({ adapter: adapterSpec(config) });
    closeLater(learner);
    for (const text of checkSamplerLogprobs(config, engine.capabilities.engine, sampler.logprobs)) warn(text);
    const newLearner = async (spec: LearnerSpec) => closeLater(await opened.engine.createLearner(spec));
    const reference = comparesWithBase ? await newLearner({ adapter: { kind: "none" } }) : undefined;
    const judges = needsCritic(config, experiment.estimators) && !val_only;
    const critic = judges ? await newLearner(criticSpec(config)) : undefined;
    const { chat } = opened;
    const gateway = await openRunGateway({ config, folder, chat, model: engine.model.name, warn });
    closers.push(() => gateway.close());
    const run: Run = {
      ...{
        config,
        storedConfig,
        experiment,
        plan,
        engine,
        sampler,
        learner,
        reference,
        critic,
        folder,
        emit,
        chat,
        gateway,
      },
      workflow: experiment.workflow,
      progress: { step: 0, draws: 0, badSteps: 0 },
      recoveries: options.recoveries ?? 0,
      health: watchHealth(config),
      validation: { step: -1, metrics: {} },
      signal: abort.signal,
      strays,
      stopRequested: () => interrupt.requested || strays.error !== undefined,
      watch: (waiting) => {
        watched = waiting;
      },
    };
    await restore(run, options.checkpoint);
    folder?.keepTokenizer(engine.model.directory);
    folder?.writeConfig(toYaml(composed.stored, composed.origins, { unresolved: true }));
    begun = true;
    emit({
      type: "run-start",
      folder: folder ? relative(process.cwd(), folder.path) : "",
      totalSteps: plan.totalSteps,
      step: run.progress.step,
      history: folder?.history() ?? [],
      text: [describeModel(engine, config), plan.arithmetic],
    });
    return { run, close };
  } catch (error) {
    await close();
    throw error;
  }
}

/** Finds what is wrong with the loss before the first step. Whether it needs the reference policy. */
function checkLoss(config: Config, { losses }: Experiment<unknown>, { capabilities }: Engine): boolean {
  const options = policyLossOptions(config, losses);
  correctionOptions(config);
  const { initial } = klControllerOptions(config);
  requireOutputs(capabilities, config, readsEntropy(options));
  return needsReference(options) || (config.rllm.algorithm.use_kl_in_reward && initial > 0);
}

/** @param results of a measurement: the folder to keep them in */
function openFolder(config: Config, results: string | undefined): RunFolder | undefined {
  const { run_dir, project_name: project, experiment_name: experiment, val_only } = config.rllm.trainer;
  if (results !== undefined) return openRunFolder(results);
  if (val_only) return undefined;
  return run_dir === null ? createRunFolder({ project, experiment }) : openRunFolder(run_dir);
}

async function openOwnEngine(
  config: Config,
  folder: RunFolder | undefined,
  emit: (event: RunEvent) => void,
  closers: (() => Promise<void> | void)[],
): Promise<{ engine: Engine; chat: Chat }> {
  const engine = await openEngine(config, {
    ...(folder ? { logFile: folder.workerLog } : {}),
    onStatus: (text) => emit({ type: "setup-status", text }),
  });
  closers.push(() => engine.close());
  return { engine, chat: openChat(engine.model.directory, config, (text) => emit({ type: "warning", text })) };
}

function describeModel({ model }: Engine, { model: wanted }: Config): string {
  const millions = (model.parameters / 1e6).toFixed(1);
  const targets = (["attn", "mlp", "unembed"] as const).filter((part) => wanted[`train_${part}`]).join(", ");
  const trained = wanted.lora_rank === 0 ? "all weights" : `LoRA of rank ${wanted.lora_rank} on ${targets}`;
  const attention = model.attention === "packed" ? "" : `; padded attention: ${model.attentionReason}`;
  return `${model.name}: ${model.architecture}, ${millions}M parameters, ${model.dtype} on ${model.device}, ${trained}${attention}`;
}
