/** What a training script exports: its tasks, how one is attempted and graded, and its settings. */

import type { Workflow } from "../agents/types.ts";
import type { AdvantageEstimator } from "../algorithms/advantages.ts";
import type { CustomLoss } from "../algorithms/custom-loss.ts";
import type { Engine } from "../backends/engine.ts";
import type { ScriptFacts } from "../backends/rule.ts";
import { UserError } from "../base/errors.ts";
import { launchKey } from "../base/import-module.ts";
import { nearest } from "../base/text.ts";
import { ownValue } from "../base/values.ts";
import type { Chat } from "../chat/types.ts";
import type { ComposedConfig, ConfigSources } from "../config/compose.ts";
import type { ConfigInput } from "../config/schema.ts";
import type { ConfigWarning } from "../config/tree.ts";
import type { Dataset } from "../data/dataset.ts";
import type { NamedParts } from "./named.ts";
import type { StepSourceKind } from "./step-source.ts";
import type { TeacherPrompt } from "./teachers.ts";

/** What is trained: tasks, a workflow that attempts and grades them, and settings. */
export interface Experiment<Row> extends NamedParts<Row> {
  /** Tasks to learn from. */
  train: Dataset<Row>;
  /** Tasks to measure on before, during and after training. */
  validation?: Dataset<Row>;
  /** One attempt at one task. Default: what `rllm.agent`, `rllm.env` and `rllm.workflow` name. */
  workflow?: Workflow<Row>;
  /** What the run learns from instead of rollouts; `sft` and `dpo` make such experiments. */
  source?: StepSourceKind;
  /** Your own advantage estimators, by the names that `rllm.algorithm.adv_estimator` can then have. */
  estimators?: Readonly<Record<string, AdvantageEstimator>>;
  /** Your own policy losses, by the names that `rllm.algorithm.loss_fn` and `loss_fn_map` can then have. */
  losses?: Readonly<Record<string, CustomLoss>>;
  /**
   * Self-distillation (`distillation.enabled=true`): the prompt of the teacher instead of a model call's `messages`, such as
   * these with the answer, a demonstration or feedback. The teacher scores the policy's reply after this prompt. Without
   * `distillation.teacher_models` the teacher is the policy itself.
   *
   * @example
   * teacherPrompt: (row, messages) => [{ role: "system", content: `The answer is ${row.answer}.` }, ...messages]
   */
  teacherPrompt?: TeacherPrompt<Row>;
  /** Settings of this experiment, weaker than files and command line overrides. */
  config?: ConfigInput;
  /** Called once at the end of the run, even if it failed: closes servers and tools that the script opened. */
  close?(): void | Promise<void>;
  /** What to try next, printed at the end of the run. */
  next?: string;
}

/** What rules about settings read of an experiment. */
export function scriptFacts(
  experiment: Pick<Experiment<unknown>, "estimators" | "losses" | "source" | "train" | "validation"> & {
    teacherPrompt?: unknown;
  },
): ScriptFacts {
  const { estimators = {}, losses = {}, source, teacherPrompt, train, validation } = experiment;
  return {
    estimators,
    losses,
    source: source?.name ?? "rollouts",
    teachesItself: teacherPrompt !== undefined,
    tasks: train.size,
    validation: validation?.name,
  };
}

/**
 * Types an experiment without running it, for `export default`.
 *
 * @example
 * export default defineExperiment({
 *   train: fromRows("sums", [{ question: "2+2", answer: 4 }]),
 *   workflow: singleTurn({ prompt: (row) => row.question, reward: (row, reply) => Number(reply.text.includes(String(row.answer))) }),
 * });
 */
export function defineExperiment<Row>(experiment: Experiment<Row>): Experiment<Row> {
  return experiment;
}

// Passes the command line to a script that calls `train` itself: `hone train ./train.ts key=value` stores the flags here
// before it imports the script. They are on `globalThis` so that two copies of the package share them.

export interface EvaluationRequest {
  /** Checkpoints, and null for the base model, each measured on all tasks and compared with the first. */
  candidates: readonly (string | null)[];
  /** The folder for the results, new or empty; default `runs/eval-{experiment}-{date}`. */
  output?: string;
  /** Print the summary as JSON to standard output and everything else to standard error. */
  json?: boolean;
}

export interface Launch {
  /** The script that was named on the command line, for what to do next. */
  script?: string;
  /** Settings translated from the flags of another system, such as LightRFT. */
  translated?: Pick<ConfigSources, "presets" | "flags"> & { warnings: readonly ConfigWarning[] };
  /** `a.b=value`, strongest. */
  overrides?: readonly string[];
  /** YAML files, weaker than the overrides and stronger than the script's own config. */
  files?: readonly string[];
  /** Where named configurations are searched, and the one to begin with. */
  search?: Pick<ConfigSources, "configPath" | "configDirs" | "configName">;
  /** Continue the run in this folder. */
  resume?: string;
  /** Weights to start from: a checkpoint folder. Weights only; optimizer and step count start fresh. */
  checkpoint?: string;
  /** A run or checkpoint to start from, with its model and its weights: sets `training.start_from` and `model`. */
  from?: string;
  /** Only measure, without training steps and checkpoints. A request also keeps the results and compares models. */
  evaluate?: boolean | EvaluationRequest;
  /** Called with the run folder once the run begins. */
  onBegin?: (folder: string) => void;
  /** Print the plan and stop before anything starts. */
  dryRun?: boolean;
  /** What a command does with the experiment and its configuration instead of training. Returns the exit code. */
  perform?: (experiment: Experiment<unknown>, composed: ComposedConfig) => number | Promise<number>;
}

export interface TrainOptions extends Launch {
  /** An engine that is open already, with the chat of its model. The caller closes it. */
  engine?: { engine: Engine; chat: Chat };
}

const holder = globalThis as { [launchKey]?: Launch };

export function setLaunch(launch: Launch): void {
  holder[launchKey] = launch;
}

/** The pending launch, for the first `train` of the script; undefined after that. */
export function takeLaunch(): Launch | undefined {
  const launch = holder[launchKey];
  delete holder[launchKey];
  return launch;
}

/** The options that a script passes to `train`, combined with a launch: the command line wins. */
export function withLaunch(options: TrainOptions, launch: Launch): TrainOptions {
  return {
    ...options,
    ...launch,
    search: { ...options.search, ...launch.search },
    files: [...(options.files ?? []), ...(launch.files ?? [])],
    overrides: [...(options.overrides ?? []), ...(launch.overrides ?? [])],
  };
}

// Checks that what a script exports is an experiment, since scripts run without type checks.

/** The kind of each part. */
const parts: Record<keyof Experiment<unknown>, "dataset" | "function" | "object" | "list" | "text"> = {
  train: "dataset",
  validation: "dataset",
  workflow: "function",
  source: "object",
  agents: "object",
  environments: "object",
  workflows: "object",
  prompt: "function",
  reward: "function",
  tools: "list",
  estimators: "object",
  losses: "object",
  teacherPrompt: "function",
  config: "object",
  close: "function",
  next: "text",
};

/** @throws UserError for a part that is missing, unknown, or of another kind */
export function checkExperiment(experiment: object): void {
  const names = Object.keys(parts);
  for (const [name, value] of Object.entries(experiment)) {
    const kind = ownValue<string>(parts, name);
    if (kind === undefined) {
      const near = nearest(name, names, 1)[0];
      throw new UserError(`the experiment has an unknown property "${name}"`, {
        hint: near === undefined ? `an experiment can have ${names.join(", ")}` : `did you mean ${near}?`,
      });
    }
    if (value === undefined || isOf(kind, value)) continue;
    const hint =
      kind === "dataset"
        ? `${Array.isArray(value) ? "fromRows" : "generated, fromRows or openDataset"}(...) makes one, e.g. fromRows("my-tasks", rows)`
        : name === "workflow"
          ? "a workflow is a function (task, { model }) => reward, or the result of singleTurn, multiTurn or useTools"
          : undefined;
    throw new UserError(
      `the experiment's ${name} must be ${article(kind)}, not ${describe(value)}`,
      hint ? { hint } : {},
    );
  }
  if (!("train" in experiment) || experiment.train === undefined) {
    throw new UserError("the experiment has no train dataset", { hint: 'e.g. train: fromRows("my-tasks", rows)' });
  }
}

function isOf(kind: string, value: unknown): boolean {
  if (kind === "function") return typeof value === "function";
  if (kind === "text") return typeof value === "string";
  if (kind === "list") return Array.isArray(value);
  if (typeof value !== "object" || value === null || Array.isArray(value)) return false;
  return kind === "object" || ("task" in value && typeof value.task === "function" && "size" in value);
}

const article = (kind: string) => (kind === "object" ? `an ${kind}` : `a ${kind}`);

function describe(value: unknown): string {
  if (value instanceof Promise) return "a promise: write await before it";
  return Array.isArray(value) ? "a list" : typeof value === "object" && value !== null ? "an object" : String(value);
}
