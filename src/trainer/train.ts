/**
 * `train()`: one run from its configuration to its summary. `open-run.ts` opens it, `loop.ts` repeats its steps, and a
 * run whose engine only lost the model's state continues from its last checkpoint.
 */
import { existsSync, readdirSync } from "node:fs";
import { join, relative } from "node:path";
import type { Workflow } from "../agents/types.ts";
import { capabilitiesOf, requireBackend } from "../backends/backends.ts";
import { stateLostIn } from "../backends/engine-parts.ts";
import { messageOf, RunError, UserError } from "../base/errors.ts";
import { withInside } from "../base/files.ts";
import { textOf } from "../chat/messages.ts";
import { type ComposedConfig, type ConfigSources, composeConfig } from "../config/compose.ts";
import type { Config } from "../config/schema.ts";
import { printWarnings, warningLine } from "../config/secrets.ts";
import { toYaml } from "../config/yaml.ts";
import { checkRunGateway, requireGatewayPort } from "../gateway/run-gateway.ts";
import { checkSettings, requireValues } from "../rules/check.ts";
import { readEpisode } from "../tracking/episodes.ts";
import { formatNumber, type RunEvent, type StepMetrics } from "../tracking/events.ts";
import { linesFrom, maxEpisodeBytes } from "../tracking/json-lines.ts";
import { episodesFile } from "../tracking/run-folder.ts";
import type { Episode } from "../trajectories/types.ts";
import { runAsyncLoop } from "./async-loop.ts";
import { bestCheckpoint } from "./checkpoints.ts";
import { evaluate, type Measurement } from "./evaluate.ts";
import {
  checkExperiment,
  type Experiment,
  scriptFacts,
  type TrainOptions,
  takeLaunch,
  withLaunch,
} from "./experiment.ts";
import { isDone, type Run, runLoop } from "./loop.ts";
import { openRun } from "./open-run.ts";
import { compileOptions, type RunOptions } from "./options.ts";
import { planOf } from "./plan.ts";
import { openCheckpoint, requireCheckpoint, resumeOptions, savedConfigFile } from "./resume.ts";
import { resolveWorkflow } from "./workflow.ts";

// Continues a failed run from its last checkpoint if its engine only lost the model's state, else says how to
// continue.

interface Recovery {
  /** How often the run has recovered. */
  readonly count: number;
  /** Overrides with which the next attempt continues where this one stopped. */
  overrides(): string[];
  begin(run: Run): void;
  /** Reports that the run recovers from the error; undefined: the run ends with it. */
  after(error: unknown): string | undefined;
  /** The error that the run ends with. Names the command to continue with. */
  final(error: unknown): unknown;
}

/** Attempts in a row that begin at the same step. */
const maxWithoutProgress = 3;

function createRecovery(): Recovery {
  let count = 0;
  let folder: string | undefined;
  let [begunAt, fruitless] = [0, 0];
  return {
    get count() {
      return count;
    },
    overrides() {
      if (folder === undefined) return [];
      const checkpoints = join(folder, "checkpoints");
      // A run without a checkpoint starts again from its beginning.
      const saved = existsSync(checkpoints) && readdirSync(checkpoints).length > 0;
      const resume = saved ? ["training.resume_mode=auto", "training.resume_from_path=null"] : [];
      return [`rllm.trainer.run_dir=${JSON.stringify(folder)}`, ...resume];
    },
    begin({ folder: runFolder, progress }) {
      if (progress.step !== begunAt) fruitless = 0;
      begunAt = progress.step;
      folder = runFolder?.path;
    },
    after(error) {
      const lost = stateLostIn(error);
      if (!lost || folder === undefined || fruitless >= maxWithoutProgress) return undefined;
      count++;
      fruitless++;
      return `${lost.message}; continuing from the last checkpoint (recovery ${count} of this run)`;
    },
    final(error) {
      if (!(error instanceof RunError) || folder === undefined) return error;
      const path = relative(process.cwd(), folder);
      if (error.hint?.includes(`--resume ${path}`)) return error;
      const hint = [error.hint?.replace(/\.$/, ""), `to continue, add --resume ${path} to the command`]
        .filter(Boolean)
        .join("; ");
      return new RunError(error.message, { code: error.code, hint, details: error.details, cause: error });
    },
  };
}

// The same validation prompts before and after training, side by side.

const shown = 4;

/** Lines with the first few prompts and both replies; empty if the run has no validation before training. */
export function beforeAfter(folder: string, lastStep: number): string[] {
  if (lastStep === 0) return [];
  const before = firstEpisodes(folder, 0);
  const after = new Map(firstEpisodes(folder, lastStep).map((episode) => [episode.id, episode]));
  return before.flatMap((episode) => {
    const later = after.get(episode.id);
    return later ? [`  ${promptOf(episode)}`, `    before  ${replyOf(episode)}`, `    after   ${replyOf(later)}`] : [];
  });
}

/** A file that cannot be read only shortens the report: the run itself is complete. */
function firstEpisodes(folder: string, step: number): Episode[] {
  const found: Episode[] = [];
  try {
    withInside(folder, `episodes/${episodesFile(step, "validation")}`, (file) => {
      for (const { text } of linesFrom(file, { max: maxEpisodeBytes })) {
        if (found.length === shown) return;
        if (text) found.push(readEpisode(text));
      }
    });
  } catch {}
  return found;
}

function promptOf(episode: Episode): string {
  const messages = episode.trajectories[0]?.steps[0]?.messages ?? [];
  return quote(textOf(messages.findLast(({ role }) => role === "user")?.content ?? episode.taskId));
}

function replyOf(episode: Episode): string {
  const trajectory = episode.trajectories[0];
  const text = trajectory?.steps.at(-1)?.text;
  const reward = trajectory?.reward ?? null;
  return `${quote(text ?? episode.failure?.message ?? "")}  (reward ${reward === null ? "unknown" : Number(reward.toFixed(3))})`;
}

function quote(text: string): string {
  const line = text.trim().replace(/\s+/g, " ");
  return JSON.stringify(line.length > 100 ? `${line.slice(0, 99)}…` : line);
}

// One run from its configuration to its summary. `opening/open-run.ts` opens it, `loop.ts` repeats its steps.

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
    attempted = { composed: again, runOptions: compile(experiment, again, options) };
  }
}

async function trainRun(run: Run, experiment: Experiment<unknown>, script: string | undefined): Promise<RunSummary> {
  const { options, progress, folder } = run;
  const { plan, asynchronous } = options;
  if (progress.step === 0 && plan.validatesFirst) run.validation = await run.validate(0);
  if (!isDone(run)) await (asynchronous ? runAsyncLoop(run, asynchronous) : runLoop(run));
  if (run.unhandled.error) throw run.unhandled.error;
  const done = isDone(run);
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
        if (run.unhandled.error) throw run.unhandled.error;
        run.emit({ type: "run-end", reason: "done" });
        return found;
      });
      return measured!;
    },
  };
}

interface Checked {
  composed: ComposedConfig;
  runOptions: RunOptions;
}

/** Refuses what cannot work, and reports what has no effect. */
async function check(experiment: Experiment<unknown>, given: ComposedConfig, options: TrainOptions): Promise<Checked> {
  const { composed, warnings } = settingsOf(experiment, given, options);
  for (const requirement of requirements(experiment, composed, options)) await requirement();
  const runOptions = compile(experiment, composed, options);
  printWarnings(warnings);
  return { composed, runOptions };
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

function compile(experiment: Experiment<unknown>, composed: ComposedConfig, { engine }: TrainOptions): RunOptions {
  return compileOptions(composed, engine?.engine.capabilities ?? capabilitiesOf(composed.config), experiment);
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
  { composed, runOptions, options, recovery }: Opening,
  work: (run: Run) => Promise<T>,
): Promise<T | undefined> {
  const workflow = await workflowOf(experiment, composed.config);
  let opened: Awaited<ReturnType<typeof openRun>> | undefined;
  let failed = false;
  try {
    opened = await openRun({ ...experiment, workflow }, composed, runOptions, {
      ...options,
      recoveries: recovery?.count ?? 0,
    });
    recovery?.begin(opened.run);
    return await Promise.race([work(opened.run), opened.run.unhandled.fatal]);
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
  const { folder, progress, options, canMerge } = run;
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
    const value = `${options.checkpoints.bestMetric} is ${formatNumber(best.score)}, of step ${best.step}`;
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
