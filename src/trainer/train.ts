/** One run from its configuration to its summary. `opening/open-run.ts` opens it, `loop.ts` repeats its steps. */

import { relative } from "node:path";
import { resolveWorkflow } from "../agents/named/resolve-workflow.ts";
import type { Workflow } from "../agents/types.ts";
import { capabilitiesOf, requireBackend } from "../backends/registry/open-engine.ts";
import { type ComposedConfig, type ConfigSources, composeConfig } from "../config/compose.ts";
import type { Config } from "../config/schema.ts";
import { printWarnings, warningLine } from "../config/warnings.ts";
import { toYaml } from "../config/yaml/to-yaml.ts";
import { messageOf, UserError } from "../errors.ts";
import { checkSettings, requireValues } from "../support/check-support.ts";
import type { RunEvent, StepMetrics } from "../tracking/events.ts";
import { formatNumber } from "../tracking/numbers.ts";
import { runAsyncLoop } from "./async-loop.ts";
import { bestCheckpoint } from "./checkpoints/checkpoints.ts";
import { openCheckpoint, savedConfigFile } from "./checkpoints/open-checkpoint.ts";
import { requireCheckpoint, resumeOptions } from "./checkpoints/restore.ts";
import { evaluate, type Measurement } from "./evaluation/evaluate.ts";
import { type Experiment, scriptFacts } from "./experiment.ts";
import { type TrainOptions, takeLaunch, withLaunch } from "./launch.ts";
import { runLoop } from "./loop.ts";
import { checkExperiment } from "./opening/check-experiment.ts";
import { checkRunGateway, requireGatewayPort } from "./opening/open-gateway.ts";
import { openRun } from "./opening/open-run.ts";
import { planOf } from "./recipe/plan.ts";
import { compileRecipe, type Recipe } from "./recipe/recipe.ts";
import { beforeAfter } from "./records/before-after.ts";
import { createRecovery, type Recovery } from "./recovery.ts";
import type { Run } from "./run.ts";

/** How a run ended. */
export interface RunSummary {
  /** 0: all planned steps are done; 130: stopped by Ctrl-C. */
  exitCode: number;
  /** The run folder; null when nothing was kept. */
  folder: string | null;
  /** Steps done. */
  step: number;
  /** Metrics of each step, oldest first; read from the run folder when it is first asked for. */
  history: readonly StepMetrics[];
  /** Metrics of the last validation. */
  validation: Readonly<Record<string, number>>;
}

/**
 * Runs an experiment: trains, or only measures.
 *
 * @throws UserError for mistakes in configuration, data or model; RunError when the run fails
 * @example
 * const { history } = await train(experiment, { overrides: ["rllm.trainer.total_batches=20"] });
 */
export async function train<Row>(experiment: Experiment<Row>, options: TrainOptions = {}): Promise<RunSummary> {
  const launch = takeLaunch();
  const launched = await startingFrom(launch ? withLaunch(options, launch) : options);
  checkExperiment(experiment);
  try {
    const summary = await runExperiment(experiment as Experiment<unknown>, launched);
    // `hone train` exits with the code of the run that its script starts.
    if (launch) process.exitCode = summary.exitCode;
    return summary;
  } finally {
    await experiment.close?.();
  }
}

/** Adds the settings of the run that another one starts from. Settings given now still win. */
async function startingFrom({ from, ...options }: TrainOptions): Promise<TrainOptions> {
  if (from === undefined) return options;
  const { folder, config } = await openCheckpoint(from);
  const settings = [
    ["training.start_from", folder],
    ...Object.entries(config.model).map(([key, value]) => [`model.${key}`, value]),
  ].map(([key, value]) => `${key}=${JSON.stringify(value)}`);
  return { ...options, overrides: [...settings, ...(options.overrides ?? [])] };
}

async function runExperiment(experiment: Experiment<unknown>, options: TrainOptions): Promise<RunSummary> {
  const nothing: RunSummary = { exitCode: 0, folder: null, step: 0, history: [], validation: {} };
  if (options.inspect) {
    options.inspect(compose(experiment, options), scriptFacts(experiment));
    return nothing;
  }
  if (options.perform) return { ...nothing, exitCode: await options.perform(experiment, compose(experiment, options)) };
  if (typeof options.evaluate === "object") {
    const { folder, validation } = await evaluate(options.evaluate, (candidate) =>
      prepareMeasurement(experiment, { ...options, ...candidate }),
    );
    return { ...nothing, folder, validation };
  }
  const composed = compose(experiment, options);
  if (options.dryRun) return { ...nothing, exitCode: await dryRun(experiment, composed, options) };
  const recovery = createRecovery();
  let attempted = await check(experiment, composed, options);
  for (;;) {
    const opening = { ...attempted, options, recovery };
    const summary = await withRun(experiment, opening, (run) => trainRun(run, experiment, options.script));
    if (summary) return summary;
    // Its warnings were reported with the first attempt.
    const overrides = [...(options.overrides ?? []), ...recovery.overrides()];
    const again = settingsOf(experiment, compose(experiment, { ...options, overrides }), options).composed;
    attempted = { composed: again, recipe: compile(experiment, again, options) };
  }
}

async function trainRun(run: Run, experiment: Experiment<unknown>, script: string | undefined): Promise<RunSummary> {
  const { recipe, progress, folder } = run;
  const { plan, asynchronous } = recipe;
  if (progress.step === 0 && plan.validatesFirst) run.validation = await run.validate(0);
  if (progress.step < plan.totalSteps) await (asynchronous ? runAsyncLoop(run, asynchronous) : runLoop(run));
  if (run.strays.error) throw run.strays.error;
  const done = progress.step >= plan.totalSteps;
  run.emit(await endOf(run, done, experiment, script));
  let history: StepMetrics[] | undefined;
  return {
    exitCode: done ? 0 : 130,
    folder: folder?.path ?? null,
    step: progress.step,
    get history() {
      history ??= [...(folder?.history() ?? [])];
      return history;
    },
    validation: run.validation.metrics,
  };
}

/** Composes and checks the settings now, and measures later. */
async function prepareMeasurement(
  experiment: Experiment<unknown>,
  options: TrainOptions & { settings?: string },
): Promise<Measurement> {
  const checked = await check(experiment, compose(experiment, options), options);
  return {
    config: checked.composed.config,
    async measure(results, step) {
      const opening = { ...checked, options: { ...options, results }, recovery: undefined };
      const measured = await withRun(experiment, opening, async (run) => {
        const found = await run.validate(step, false);
        if (run.strays.error) throw run.strays.error;
        run.emit({ type: "run-end", reason: "done" });
        return found;
      });
      return measured!;
    },
  };
}

interface Checked {
  composed: ComposedConfig;
  recipe: Recipe;
}

/** Refuses what cannot work, and reports what has no effect. */
async function check(experiment: Experiment<unknown>, given: ComposedConfig, options: TrainOptions): Promise<Checked> {
  const { composed, warnings } = settingsOf(experiment, given, options);
  for (const requirement of requirements(experiment, composed, options)) await requirement();
  const recipe = compile(experiment, composed, options);
  printWarnings(warnings);
  return { composed, recipe };
}

/**
 * Prints the configuration, the size of the run, and every reason why a run would stop.
 * @returns the exit code: that of a run that stops because of its settings, or 0
 */
async function dryRun(experiment: Experiment<unknown>, given: ComposedConfig, options: TrainOptions): Promise<number> {
  const { composed, warnings, isRefused } = settingsOf(experiment, given, options);
  const read = [experiment.train, experiment.validation].flatMap((dataset) => dataset?.notes ?? []);
  const lines = [...[...composed.notes, ...read].map((note) => `note: ${note}`), ...warnings.map(warningLine)];
  let exitCode = isRefused ? 2 : 0;
  const compiles = () => {
    for (const text of compile(experiment, composed, options).warnings) lines.push(`warning: ${text}`);
  };
  for (const requirement of [...requirements(experiment, composed, options), ...(isRefused ? [] : [compiles])]) {
    try {
      await requirement();
    } catch (error) {
      if (!(error instanceof UserError)) throw error;
      lines.push(`warning: ${error.message}; a run would stop here`);
      exitCode = error.exitCode;
    }
  }
  for (const line of lines) process.stderr.write(`${line}\n`);
  const plan = planOf(experiment, composed.config);
  process.stdout.write(`${toYaml(composed.stored, composed.origins, { unresolved: true })}\n# ${plan.arithmetic}\n`);
  return exitCode;
}

const settingsOf = (
  experiment: Experiment<unknown>,
  composed: ComposedConfig,
  { engine, dryRun = false }: TrainOptions,
) => checkSettings(composed, { capabilities: engine?.engine.capabilities, script: scriptFacts(experiment), dryRun });

/** What a run requires besides settings that fit together. */
function requirements(
  experiment: Experiment<unknown>,
  composed: ComposedConfig,
  { engine, checkpoint, dryRun }: TrainOptions,
): (() => unknown)[] {
  const { config } = composed;
  return [
    () => dryRun && requireValues(composed),
    () => engine ?? requireBackend(composed),
    () => checkRunGateway(config),
    () => requireGatewayPort(config),
    () => workflowOf(experiment, config),
    () => requireCheckpoint(resumeOptions(config), checkpoint),
  ];
}

/** A run that learns from rows, without tasks to validate on, attempts nothing. */
function workflowOf(experiment: Experiment<unknown>, { rllm }: Config): Workflow<unknown> | Promise<Workflow<unknown>> {
  if (experiment.source && !experiment.validation) return () => 0;
  return resolveWorkflow(experiment, rllm);
}

function compile(experiment: Experiment<unknown>, composed: ComposedConfig, { engine }: TrainOptions): Recipe {
  return compileRecipe(composed, engine?.engine.capabilities ?? capabilitiesOf(composed.config), experiment);
}

interface Opening extends Checked {
  options: TrainOptions & { results?: string };
  /** Only for a run that trains. */
  recovery: Recovery | undefined;
}

/**
 * Opens a run, works with it, and closes it, also after an error.
 * @returns undefined if it failed and can recover
 */
async function withRun<T>(
  experiment: Experiment<unknown>,
  { composed, recipe, options, recovery }: Opening,
  work: (run: Run) => Promise<T>,
): Promise<T | undefined> {
  const workflow = await workflowOf(experiment, composed.config);
  let opened: Awaited<ReturnType<typeof openRun>> | undefined;
  let failed = false;
  try {
    opened = await openRun({ ...experiment, workflow }, composed, recipe, {
      ...options,
      recoveries: recovery?.count ?? 0,
    });
    recovery?.begin(opened.run);
    return await Promise.race([work(opened.run), opened.run.strays.fatal]);
  } catch (error) {
    failed = true;
    const recovers = recovery?.after(error);
    if (recovers === undefined) {
      const text = messageOf(error);
      opened?.run.emit({ type: "run-end", reason: "failed", text });
      throw recovery?.final(error) ?? error;
    }
    if (opened) opened.run.emit({ type: "warning", text: recovers });
    else process.stderr.write(`warning: ${recovers}\n`);
    return undefined;
  } finally {
    await opened?.close().catch((error: Error) => {
      if (!failed) throw error;
      process.emitWarning(`closing failed: ${error.message}`); // It must not hide why the run failed.
    });
  }
}

function compose(experiment: Experiment<unknown>, options: TrainOptions & { settings?: string }): ComposedConfig {
  const composed = composeConfig(sourcesOf(experiment, options));
  return { ...composed, warnings: [...(options.translated?.warnings ?? []), ...composed.warnings] };
}

function sourcesOf(experiment: Experiment<unknown>, options: TrainOptions & { settings?: string }): ConfigSources {
  const files = [...(options.files ?? [])];
  const overrides = [...(options.overrides ?? [])];
  if (options.resume !== undefined) {
    // The run's own resolved configuration comes first, so that flags given now still win.
    files.unshift(savedConfigFile(options.resume));
    overrides.push(`rllm.trainer.run_dir=${JSON.stringify(options.resume)}`);
  }
  if (options.settings !== undefined) {
    files.unshift(options.settings);
    // The weights that the run started from are not what is measured.
    overrides.push("training.resume_mode=off", "training.start_from=null", "rllm.trainer.run_dir=null");
  }
  if (options.evaluate) overrides.push("rllm.trainer.val_only=true");
  const { warnings: _, ...layers } = options.translated ?? {};
  const input = experiment.config ? { input: experiment.config } : {};
  return { ...options.search, ...layers, ...input, files, overrides };
}

/** The last event of a run: its results, its folder, and what to do next. */
async function endOf(
  run: Run,
  done: boolean,
  { next, validation }: Experiment<unknown>,
  script: string | undefined,
): Promise<RunEvent> {
  const { folder, progress, recipe, canMerge } = run;
  const path = folder && relative(process.cwd(), folder.path);
  if (!done) {
    return {
      type: "run-end",
      reason: "stopped",
      text: `step ${progress.step} is saved; to continue, add --resume ${path} to the command`,
    };
  }
  if (!path || progress.step === 0) return { type: "run-end", reason: "done" };
  const report: string[] = [];
  const answers = beforeAfter(folder.path, progress.step);
  if (answers.length > 0) report.push("", "The same prompts before and after training:", ...answers);
  const best = await bestCheckpoint(folder.checkpoints);
  if (best?.score !== undefined && best.step !== progress.step) {
    const value = `${recipe.checkpoints.bestMetric} is ${formatNumber(best.score)}, of step ${best.step}`;
    report.push("", `The best ${value}: ${path}/best`);
  }
  report.push(
    "",
    `The run is in ${path}. Next:`,
    `  npx hone-rl view ${path}`,
    ...(script && validation ? [`  npx hone-rl eval ${script} --checkpoint ${path} --base`] : []),
    `  npx hone-rl chat --checkpoint ${path}`,
    `  npx hone-rl gateway --checkpoint ${path} --port 4000   # for agents: http://127.0.0.1:4000/v1`,
    canMerge ? `  npx hone-rl export ${path} my-model --as merged` : `  npx hone-rl export ${path} my-adapter`,
  );
  if (next !== undefined) report.push(`  ${next}`);
  return { type: "run-end", reason: "done", report };
}
