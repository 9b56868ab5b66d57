/** Checks what workflows return before it is trained on: each reward is a finite number or null. */
import { inspect } from "node:util";
import { BadOutcome } from "../../agents/control-flow.ts";
import type { Outcome } from "../../agents/types.ts";
import { trials } from "../../trajectories/trials.ts";
import type { Step, Trajectory } from "../../trajectories/types.ts";
import { labelOf } from "../to-episode.ts";

const numberHint = "a reward must be a finite number, or { reward: null } if unknown";

function badReward(what: string, value: unknown): BadOutcome {
  return new BadOutcome(`${what} ${show(value)}; ${numberHint}`, { hint: fixFor(value) });
}

/** What to write instead of a value that is not a reward. */
function fixFor(value: unknown): string {
  switch (typeof value) {
    case "boolean":
      return "return Number(correct), or { reward: Number(correct), correct }";
    case "undefined":
      return "return a number on every path of the reward or workflow, and await asynchronous calls";
    case "string":
      return "return Number(text) where the text is a number";
    case "number":
      if (Number.isFinite(value)) return "training computes in 32 bits, where this is infinite: scale it";
      return "a division by 0, or Number(text) of a text that is not a number, is not finite: return 0 instead, or { reward: null } if unknown";
    default:
      return "return a number, { reward: 1, correct: true }, or { reward: null } if unknown";
  }
}

/**
 * @param value what a workflow returned
 * @param recorded the trajectories that the rollout recorded, for checking `rewards` and `stepRewards`
 * @throws BadOutcome saying what was returned instead
 */
export function checkOutcome(value: unknown, recorded: readonly Trajectory[]): Outcome {
  if (typeof value === "number") return { reward: checkReward(value, "returned") };
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw badReward("returned", value);
  const outcome = value as Partial<Record<keyof Outcome, unknown>>;
  if (!("reward" in outcome)) throw new BadOutcome(`returned an object without \`reward\`: ${show(value)}`);
  checkReward(outcome.reward, "returned reward");
  checkType("correct", outcome.correct, "boolean");
  checkType("explanation", outcome.explanation, "string");
  if (outcome.trial !== undefined && !trials.safeParse(outcome.trial).success) {
    throw new BadOutcome(
      `returned a trial that has other fields than commands, files and verifier: ${show(outcome.trial)}`,
    );
  }
  for (const [name, metric] of entries(outcome.metrics, "metrics")) {
    if (typeof metric !== "number" || !Number.isFinite(metric)) {
      throw new BadOutcome(`returned metrics.${name} ${show(metric)}; a metric must be a finite number`);
    }
  }
  for (const [role, reward] of entries(outcome.rewards, "rewards")) {
    checkReward(reward, `returned rewards.${role}`);
    if (reward !== null) checkRole(role, recorded);
  }
  for (const [role, rewards] of entries(outcome.stepRewards, "stepRewards")) {
    checkSteps("stepRewards", role, rewards, recorded, (reward, what) => checkReward(reward, what));
  }
  for (const [role, advantages] of entries(outcome.advantages, "advantages")) {
    checkSteps("advantages", role, advantages, recorded, checkAdvantage);
  }
  if (outcome.termination !== undefined && !endings.includes(outcome.termination as string)) {
    throw new BadOutcome(`returned termination ${show(outcome.termination)}; it must be one of ${endings.join(", ")}`);
  }
  return value as Outcome;
}

/** Checks lists with one entry for each of the role's model calls. */
function checkSteps(
  name: "stepRewards" | "advantages",
  role: string,
  given: unknown,
  recorded: readonly Trajectory[],
  check: (value: unknown, what: string, step: Step) => void,
): void {
  if (!Array.isArray(given)) throw new BadOutcome(`returned ${name}.${role} ${show(given)}; it must be a list`);
  checkRole(role, recorded);
  const { steps } = recorded.find((trajectory) => labelOf(trajectory) === role) ?? { steps: [] };
  if (steps.length !== given.length) {
    throw new BadOutcome(
      `returned ${given.length} ${name} for "${role}", which called the model ${steps.length} times`,
    );
  }
  steps.forEach((step, index) => {
    check(given[index], `returned ${name}.${role}`, step);
  });
}

function checkAdvantage(advantage: unknown, what: string, { tokens }: Step): void {
  if (isFiniteInTraining(advantage)) return;
  if (Array.isArray(advantage) && advantage.length === tokens.length && advantage.every(isFiniteInTraining)) return;
  throw new BadOutcome(
    `${what} ${show(advantage)}; it must be a finite number, or one for each of the reply's ${tokens.length} tokens`,
  );
}

/** The terminations that a workflow may return. */
const endings = [
  "env_done",
  "max_turns_exceeded",
  "max_prompt_length_exceeded",
  "max_response_length_exceeded",
  "unknown",
];

/** A role's reward applies to each of its instances. */
function checkRole(role: string, recorded: readonly Trajectory[]): void {
  const labels = recorded.map(labelOf);
  if (labels.includes(role) || recorded.some(({ name }) => name === role)) return;
  throw new BadOutcome(
    `returned a reward for the role "${role}", but the model was called as ${labels.join(", ") || "no role"} only`,
  );
}

const isFiniteInTraining = (value: unknown): value is number =>
  typeof value === "number" && Number.isFinite(Math.fround(value));

function checkReward(reward: unknown, what: string): number | null {
  if (reward === null || isFiniteInTraining(reward)) return reward;
  throw badReward(what, reward);
}

function checkType(name: string, value: unknown, type: "boolean" | "string"): void {
  if (value !== undefined && typeof value !== type)
    throw new BadOutcome(`returned ${name} ${show(value)}; it must be a ${type}`);
}

function entries(value: unknown, name: string): [string, unknown][] {
  if (value === undefined) return [];
  if (typeof value !== "object" || value === null)
    throw new BadOutcome(`returned ${name} ${show(value)}; it must be an object`);
  return Object.entries(value);
}

function show(value: unknown): string {
  const text = typeof value === "object" || typeof value === "string" ? json(value) : String(value);
  return text.length > 200 ? `${text.slice(0, 200)}...` : text;
}

function json(value: unknown): string {
  try {
    return JSON.stringify(value);
  } catch {
    // For example a circular object.
    return inspect(value);
  }
}
