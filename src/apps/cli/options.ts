/** Arguments and options that several commands have. */
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { type Command, InvalidArgumentError, Option } from "commander";
import { openChat, openEngine } from "../../backends/backends.ts";
import type { Sampler } from "../../backends/engine.ts";
import { adapterSpec } from "../../backends/engine-parts.ts";
import type { ScriptFacts } from "../../backends/rule.ts";
import { messageOf, UserError } from "../../base/errors.ts";
import { importModule } from "../../base/import-module.ts";
import { printableJson } from "../../base/text.ts";
import type { NoVision, Vision } from "../../chat/images.ts";
import type { Chat } from "../../chat/types.ts";
import { type ComposedConfig, composeConfig } from "../../config/compose.ts";
import { printWarnings, shownTree } from "../../config/secrets.ts";
import { toYaml } from "../../config/yaml.ts";
import { imageFetching } from "../../gateway/run-gateway.ts";
import type { TraceFilter } from "../../gateway/traces/otlp.ts";
import { visionOf } from "../../rollout/session.ts";
import { checkSettings, type ExplainedKey, explainConfig } from "../../rules/check.ts";
import { type Choice, type Chosen, selections } from "../../supervised/select.ts";
import { type Launch, scriptFacts } from "../../trainer/experiment.ts";
import type { OpenCheckpoint } from "../../trainer/resume.ts";
import { showStatus, spawnWithParent, wrapped } from "./report-error.ts";

export const overrides = ["[overrides...]", "key=value pairs of the configuration", addOverride] as const;

function addOverride(text: string, earlier: string[] = []): string[] {
  if (!text.includes("=") && existsSync(text)) {
    throw new InvalidArgumentError(
      `Settings have the form key=value. A model is named by model.name=${text}, a run's weights by an option such as --checkpoint.`,
    );
  }
  return [...earlier, text];
}

export const configFiles = () =>
  new Option("-c, --config <file...>", "YAML files; a later file wins over an earlier one, key=value pairs over all");

/** Every name that a checkpoint has. */
export const checkpointNames = "a run folder, a checkpoint in it, or RUN/best";

export const checkpoint = () => new Option("--checkpoint <folder>", checkpointNames);

export const format = () => new Option("--format <form>", "output format").choices(["yaml", "json"]).default("yaml");

export const strict = () => new Option("--strict", "treat warnings about LightRFT's flags as errors");

/** Parses the value of an option. The parser adds the option's name to the message. */
export const wholeNumber =
  (least: number, most = Number.MAX_SAFE_INTEGER) =>
  (text: string): number => {
    const value = Number(text);
    if (text.trim() !== "" && Number.isInteger(value) && value >= least && value <= most) return value;
    const range = most === Number.MAX_SAFE_INTEGER ? `of at least ${least}` : `from ${least} to ${most}`;
    throw new InvalidArgumentError(`It must be a whole number ${range}.`);
  };

/** The text of a file that an argument names. */
export function readText(file: string): string {
  try {
    return readFileSync(file, "utf8");
  } catch (cause) {
    throw new UserError(`${file} cannot be read: ${messageOf(cause)}`, { cause });
  }
}

// The options, the files and the report of commands that choose among the attempts at each task.

/** @param fallback what is selected without `--select`; undefined: nothing is chosen */
export const choiceOptions = (command: Command, fallback: Choice["select"] | undefined): Command => {
  const select = new Option(
    "--select <which>",
    "of each task: best (highest reward), correct, shortest (of the correct) or all",
  ).choices(selections);
  return command
    .option("--filter <condition>", 'only tasks that match, e.g. "0 < avg < 1"')
    .addOption(fallback === undefined ? select : select.default(fallback))
    .option(
      "--max-per-task <count>",
      "at most this many of each task (default: 1 of best and shortest)",
      wholeNumber(1),
    )
    .option("--dedup", "leave out equal conversations of a task")
    .option(
      "--val-fraction <share>",
      "also write this share of the tasks to a second place, OUTPUT with -val",
      fraction,
    );
};

export const conditionHelp = (what: string): string => `
A condition compares avg, best, worst, n, n_correct, solved and pass@K of a
task's ${what}: "n_correct >= 1 and avg < 0.9". Without a reward they do not
count.`;

function fraction(text: string): number {
  const value = Number(text);
  if (text.trim() !== "" && value >= 0 && value < 1) return value;
  throw new InvalidArgumentError("It must be a number from 0 to below 1.");
}

export const jsonLine = (value: unknown) => `${printableJson(JSON.stringify(value))}\n`;

/** Writes to standard output if no file is named. @returns what it wrote where, or "" */
export function writeLines(values: readonly unknown[], output: string | undefined, hint: string): string {
  const lines = values.map(jsonLine).join("");
  if (output === undefined) {
    process.stdout.write(lines);
    return "";
  }
  createOutput(output, hint, () => writeFileSync(output, lines, { flag: "wx" }));
  return `${values.length} lines written to ${output}`;
}

/** @param hint for the user if it exists already: nothing is overwritten */
export function createOutput(output: string, hint: string, create: () => void): void {
  try {
    create();
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    if (code === "EEXIST") throw new UserError(`${output} already exists`, { hint });
    throw new UserError(`${output} cannot be written: ${message}`, { cause: error });
  }
}

/** The second place of `--val-fraction`; undefined without it. */
export function heldOutput({ valFraction, output }: { valFraction?: number | undefined; output?: string | undefined }) {
  if (!valFraction) return undefined;
  if (output === undefined) throw new UserError("--val-fraction writes to a second place, so it needs --output");
  return output.replace(/(\.[^./]*)?$/, "-val$1");
}

/** @param what the plural of an attempt */
export function describeCounts(
  { attempts, tasks, ...left }: Chosen["counts"] & { damaged?: number },
  what: "episodes" | "sessions",
): string {
  const reasons = {
    unknown: `${what} without a reward`,
    filtered: "tasks that do not match",
    repeated: "equal conversations",
    withoutMessages: `${what} without a conversation`,
    damaged: "lines that cannot be read",
  };
  const parts = Object.entries(reasons).flatMap(([name, reason]) => {
    const count = left[name as keyof typeof left] ?? 0;
    return count > 0 ? [`${count} ${reason}`] : [];
  });
  return `${attempts} ${what} of ${tasks} tasks${parts.length > 0 ? `; left out: ${parts.join(", ")}` : ""}`;
}

// Composes the configuration of a command that loads a model without an experiment.

/**
 * @param checkpoint its run's configuration comes first
 * @throws UserError for missing values and for settings that the backend does not support, as `hone train` does
 */
export function composeSupported(overrides: readonly string[], checkpoint?: OpenCheckpoint): ComposedConfig {
  const composed = composeConfig({ input: checkpoint?.config ?? {}, overrides });
  // The run's own estimators and losses are registered by its script, which is not loaded here.
  const { adv_estimator = [], loss_fn, estimator_map = {}, loss_fn_map = {} } = checkpoint?.config.rllm.algorithm ?? {};
  const registered = [adv_estimator, loss_fn ?? [], Object.values(estimator_map), Object.values(loss_fn_map)].flat(2);
  const checked = checkSettings(composed, { registered, trains: false });
  printWarnings(checked.warnings);
  return checked.composed;
}

// Prints a composed configuration, or explains its keys.

export type Form = "yaml" | "json";

/**
 * @param explained the key or section to explain; true: all keys
 * @param script what is known of the experiment, if one is given
 */
export function printConfig(
  composed: ComposedConfig,
  format: Form,
  explained?: string | true,
  script?: ScriptFacts,
): void {
  printWarnings(checkSettings(composed, { script, dryRun: true }).warnings);
  for (const note of composed.notes) process.stderr.write(`note: ${note}\n`);
  if (explained !== undefined) {
    const keys = explainConfig(composed, explained === true ? undefined : explained, { script });
    if (format === "json") printJson(keys);
    else process.stdout.write(`${keys.map(explanation).join("\n\n")}\n`);
  } else if (format === "json") printJson(shownTree(composed.tree, composed.masks));
  else process.stdout.write(`${toYaml(composed.stored, composed.origins, { unresolved: true }).trimEnd()}\n`);
}

/** Prints the configuration of a script instead of running it. */
export const printing =
  (format: Form, explained?: string | true): NonNullable<Launch["perform"]> =>
  (experiment, composed) => {
    printConfig(composed, format, explained, scriptFacts(experiment));
    return 0;
  };

export function printJson(value: unknown): void {
  process.stdout.write(`${JSON.stringify(value, null, 2)}\n`);
}

function explanation({ key, value, originText, type, description, effect, note, ...rest }: ExplainedKey): string {
  const fallback = "default" in rest ? `, default ${JSON.stringify(rest.default)}` : "";
  return [
    `${key} = ${JSON.stringify(value)}`,
    `  ${wrapped(description, 2)}`,
    `  type:   ${wrapped(type + fallback, 10)}`,
    `  origin: ${wrapped(originText, 10)}`,
    `  effect: ${wrapped(effect, 10)}`,
    ...(note === undefined ? [] : [`  note:   ${wrapped(note, 10)}`]),
  ].join("\n");
}

// The options of the commands that train, and the launch of their runs.

/** What commander parses. An option that is a property of a launch has its name, so `launchOf` passes it on. */
export interface TrainingFlags extends Pick<Launch, "resume" | "from" | "checkpoint" | "dryRun"> {
  config?: string[];
  explain?: string | true;
  view?: boolean;
}

/** @param learnsFrom the tasks of a script, or a file of rows or pairs */
export function trainingOptions(command: Command, learnsFrom: "script" | "file"): Command {
  const ofFile = learnsFrom === "file";
  command
    .addOption(configFiles())
    .option("--resume <folder>", `continue the run in this folder, e.g. runs/latest${ofFile ? ", with its data" : ""}`)
    .option("--from <run>", "start from this run's model and weights, with a fresh optimizer");
  if (!ofFile) command.option("--checkpoint <folder>", "start from the weights of this checkpoint");
  const settings = ofFile ? "these" : "the script's";
  return command
    .option("--dry-run", "print the resolved configuration and the size of the run, then stop")
    .option("--explain [key]", `explain a key, a section or all keys with ${settings} settings, then stop`)
    .option("--view", "show the run as a page while it trains, as hone view does");
}

export function launchOf(overrides: readonly string[], flags: TrainingFlags): Launch {
  const { config: files = [], explain, view, ...named } = flags;
  const launch: Launch = { overrides, files, dryRun: false, ...named };
  if (explain !== undefined) launch.perform = printing("yaml", explain);
  if (view) launch.onBegin = viewBeside;
  return launch;
}

/** Shows a run as a page while it trains: in a process of its own, which ends with this one and cannot harm the run. */
function viewBeside(folder: string): void {
  const main = process.argv[1]!;
  const viewer = spawnWithParent([main, "view", folder, "--host", "127.0.0.1"]);
  viewer.on("error", () => {});
  viewer.unref();
  viewer.channel?.unref();
}

// The function of a user's file that changes spans before they are stored.

export const spanFilterHelp =
  "a file whose default export changes each span's trace before it is stored, e.g. removes personal data; null leaves it out";

export async function loadSpanFilter(file: string | undefined): Promise<TraceFilter | undefined> {
  if (file === undefined) return undefined;
  const { default: filter } = await importModule(resolve(file));
  if (typeof filter === "function") return filter as TraceFilter;
  throw new UserError(`${file} has no function as its default export`, {
    hint: "write: export default (trace) => ({ ...trace, messages: redact(trace.messages), reply: redact(trace.reply) })",
  });
}

// Opens the model that a configuration names, with a checkpoint's weights if there is one, for sampling.

export interface OpenModel {
  sampler: Sampler;
  chat: Chat;
  vision: Vision | NoVision;
  name: string;
  /** The longest conversation in tokens. */
  maxLength: number;
  close(): Promise<void>;
}

export async function openModel(
  composed: ComposedConfig,
  checkpoint: OpenCheckpoint | undefined,
  warn: (text: string) => void,
): Promise<OpenModel> {
  const { config } = composed;
  const status = showStatus();
  const engine = await openEngine(composed, { onStatus: status.say, warn }).finally(status.end);
  try {
    const adapter = checkpoint ? adapterSpec(config) : ({ kind: "none" } as const);
    const { sampler, learner } = await engine.createPolicy({ adapter });
    if (checkpoint)
      await sampler.load(await learner.loadState(join(checkpoint.folder, "policy"), { optimizer: false }));
    const chat = await openChat(engine.model.directory, config, warn);
    const { name } = engine.model;
    const maxLength = Math.min(engine.model.maxLength, sampler.maxLength ?? Number.POSITIVE_INFINITY);
    return {
      sampler,
      chat,
      vision: visionOf(engine, imageFetching(config, warn)),
      name,
      maxLength,
      close: () => engine.close(),
    };
  } catch (error) {
    await engine.close();
    throw error;
  }
}
