/** Checks that what a script exports is an experiment, since scripts run without type checks. */
import { UserError } from "../../errors.ts";
import { nearest } from "../../nearest.ts";
import { own } from "../../own.ts";
import type { Experiment } from "../experiment.ts";

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
    const kind = own<string>(parts, name);
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
