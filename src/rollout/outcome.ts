/**
 * The outcome of a rollout: checks what the workflow returned, names what failed, and makes trajectories and an
 * episode of its model calls.
 */
import { inspect } from "node:util";
import { BadOutcome, ModelCallError, type Outcome } from "../agents/types.ts";
import { HoneError, RunError, UserError } from "../base/errors.ts";
import { beginningOf, maskUrls } from "../base/text.ts";
import { ownValue } from "../base/values.ts";
import type { Task } from "../data/dataset.ts";
import {
  type Episode,
  type Failure,
  type FailureBoundary,
  type FailureKind,
  isSideRole,
  type Step,
  type TerminationReason,
  type Trajectory,
  trials,
} from "../trajectories/types.ts";
import { defaultRole, type TrajectoryGrouping } from "./types.ts";

// Turns the model calls of a rollout into trajectories, and its last attempt into an episode.

/** The name of a trajectory in outcomes: its role, with `#instance` if the role has several. */
export const labelOf = ({ name, instance }: { name: string; instance?: number | undefined }) =>
  instance === undefined ? name : `${name}#${instance}`;

export interface RecordedCall {
  turn: number;
  role: string;
  instance: number | undefined;
  metadata: Readonly<Record<string, unknown>>;
  /** What is wrong with the reply, if anything. */
  fault: string | undefined;
  step: Step;
}

/** @returns trajectories in the order of their first calls, side calls last, with rewards of null: the first has the episode's reward */
export function toTrajectories(calls: readonly RecordedCall[], { groupBy, nameBy }: TrajectoryGrouping): Trajectory[] {
  const trajectories = new Map<unknown, Trajectory>();
  for (const { role, instance, metadata, step } of calls) {
    const key = groupBy === null ? labelOf({ name: role, instance }) : (keyOf(ownValue(metadata, groupBy)) ?? step);
    const name = nameBy === null ? role : (keyOf(ownValue(metadata, nameBy)) ?? role);
    const numbered = groupBy === null && instance !== undefined ? { instance } : {};
    const trajectory = trajectories.get(key) ?? { name, ...numbered, steps: [], reward: null };
    trajectories.set(key, trajectory);
    trajectory.steps.push(step);
  }
  return [...trajectories.values()].sort((a, b) => Number(isSideRole(a.name)) - Number(isSideRole(b.name)));
}

/** 1 and "1" are the same key. */
const keyOf = (value: unknown) => (value === undefined || value === null ? undefined : String(value));

/** How an attempt ended. */
export interface EndedAttempt {
  /** The limit that ended it, in words. */
  ended?: string;
  trajectories: Trajectory[];
  termination: TerminationReason;
  /** Undefined when the attempt ended before there was one. */
  outcome?: Outcome;
  failure?: Failure;
  /** What was thrown, when the attempt failed. */
  error?: unknown;
  /** The agent threw after the model had answered, so the error may be due to the reply. */
  agentError?: boolean;
}

/** The last attempt of a rollout as an episode. */
export function toEpisode(
  task: Task,
  rollout: number,
  retriedAfter: NonNullable<Episode["retriedAfter"]>,
  { outcome, failure, termination, ended, trajectories: recorded }: EndedAttempt,
  seconds: number,
): Episode {
  // An outcome without a model call still counts in the mean reward.
  const trajectories = recorded.length > 0 || !outcome ? recorded : [{ name: defaultRole, steps: [], reward: null }];
  for (const trajectory of trajectories) {
    const label = labelOf(trajectory);
    const ofRole = [label, trajectory.name].map((name) => ownValue(outcome?.rewards, name));
    const reward = ofRole.find((each) => each !== undefined);
    trajectory.reward = reward === undefined ? (outcome?.reward ?? null) : reward;
    const rewards = ownValue(outcome?.stepRewards, label);
    const advantages = ownValue(outcome?.advantages, label);
    for (const [index, step] of trajectory.steps.entries()) {
      step.reward = rewards?.[index] ?? null;
      const advantage = advantages?.[index];
      if (advantage !== undefined) step.advantage = advantage;
    }
  }
  const episode: Episode = {
    id: `${task.id}:${rollout}`,
    taskId: task.id,
    rollout,
    row: keptRow(task.row),
    trajectories,
    termination,
    correct: outcome?.correct ?? null,
    metrics: { ...outcome?.metrics },
    retries: retriedAfter.length,
    seconds,
  };
  const explanation = outcome?.explanation ?? ended;
  if (explanation !== undefined) episode.explanation = explanation;
  if (outcome?.trial !== undefined) episode.trial = outcome.trial;
  if (failure) episode.failure = failure;
  if (retriedAfter.length > 0) episode.retriedAfter = retriedAfter;
  return episode;
}

/** rLLM's shaping of step rewards. Rewards of trajectories do not change. */
export interface RewardShaping {
  /** `r[i] += bonus * (r[i] - r[i-1])`, of the rewards as they were; 0 is off. */
  rewardBonus: number;
  /** Then `r[i] += gamma * r[i+1]` from the last step backwards; 0 is off. */
  gamma: number;
}

/** Changes the steps, unless one of their rewards is unknown. */
export function shapeStepRewards(steps: readonly Step[], { rewardBonus, gamma }: RewardShaping): void {
  const raw = steps.flatMap(({ reward }) => reward ?? []);
  if (steps.length < 2 || raw.length < steps.length) return;
  const rewards = raw.map((reward, index) => reward + rewardBonus * (reward - (raw[index - 1] ?? reward)));
  let later = 0;
  for (const [index, step] of [...steps.entries()].reverse()) {
    later = (rewards[index] ?? 0) + gamma * later;
    step.reward = later;
  }
}

const maxCharacters = 1 << 16;

/** @returns the row as plain JSON without long bytes, or a sentence when it is not serializable or is over 64 KiB */
export function keptRow(row: unknown): unknown {
  try {
    const json = JSON.stringify(row, function (this: Record<string, unknown>, key, value: unknown) {
      // `value` of a Buffer is already a list of numbers.
      const own = this[key];
      if (own instanceof Uint8Array && own.length > 1024) return `[${own.length} bytes]`;
      return typeof value === "bigint" || (typeof value === "number" && !Number.isFinite(value))
        ? String(value)
        : value;
    }) as string | undefined;
    if (json === undefined) return `[not kept: ${typeof row}]`;
    if (json.length > maxCharacters) return `[not kept: ${json.length} characters] ${json.slice(0, 200)}`;
    return JSON.parse(json);
  } catch (error) {
    return `[not kept: ${error instanceof Error ? error.message.split("\n")[0] : error}]`;
  }
}

// Checks what workflows return before it is trained on: each reward is a finite number or null.

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
  return beginningOf(text, 200);
}

function json(value: unknown): string {
  try {
    return JSON.stringify(value);
  } catch {
    // For example a circular object.
    return inspect(value);
  }
}

// Describes what ended an attempt: whose failure it is, where it happened, and the message.

const boundaries: Record<string, FailureBoundary> = {
  "set-up": "set_up",
  environment: "environment",
  reward: "reward",
};

/**
 * Describes an error that was thrown at this stage of a workflow.
 * @param fault what is wrong with the model's last reply, if anything
 */
export function toFailure(error: unknown, stage: string, fault?: string): Failure {
  const boundary = error instanceof ModelCallError ? "engine" : (ownValue(boundaries, stage) ?? "workflow");
  const kind = failureKind(error, boundary, fault);
  const failure: Failure = { kind, boundary, message: maskUrls(describe(error, stage)) };
  if (kind === "model" && fault !== undefined) failure.message += `${aboutReply}${fault}`;
  if (error instanceof Error && error.stack !== undefined && !(error instanceof BadOutcome)) {
    failure.stack = maskUrls(error.stack);
  }
  return failure;
}

const aboutReply = "; the model's last reply ";

/** A failure's message without what is wrong with the model's last reply. */
export const withoutFault = (message: string): string => message.split(aboutReply, 1).join();

function describe(error: unknown, stage: string): string {
  if (error instanceof ModelCallError) return error.message;
  if (error instanceof BadOutcome) return `${stage} ${error.message}`;
  // The message of a HoneError is complete without the class name.
  if (error instanceof HoneError) return `${stage}: ${error.message}`;
  return `${stage} threw ${describeThrown(error)}`;
}

function describeThrown(error: unknown): string {
  if (!(error instanceof Error)) return `a value that is not an Error: ${String(error)}`;
  // fetch puts the reason into the cause.
  const cause = error.message === "fetch failed" && error.cause instanceof Error ? `: ${error.cause.message}` : "";
  // Some libraries only name the class.
  return `${error.name === "Error" ? error.constructor.name : error.name}: ${error.message}${cause}`;
}

/** @param fault what is wrong with the model's last reply, if anything */
function failureKind(error: unknown, boundary: FailureBoundary, fault: string | undefined): FailureKind {
  if (boundary === "engine" || isInfrastructure(error)) return "infrastructure";
  if (boundary === "reward") return "reward";
  if (isMistake(error)) return "agent";
  return fault !== undefined || blamesReply(error) ? "model" : "agent";
}

/** A mistake that the user must fix: a retry would fail again. */
export const isMistake = (error: unknown): error is UserError => error instanceof UserError;

/** An error and its causes, the outermost first. */
export function causes(error: unknown): unknown[] {
  const chain: unknown[] = [];
  for (let each = error; each !== undefined && each !== null && !chain.includes(each); ) {
    chain.push(each);
    each = typeof each === "object" && "cause" in each ? each.cause : undefined;
  }
  return chain;
}

const brokenConnection =
  /^(E(CONN|NET|HOST|AI_)|ENOTFOUND$|ETIMEDOUT$|EPIPE$|EMFILE$|ENFILE$|ENOMEM$|ENOSPC$|UND_ERR_)/;
const timedOut = /Timeout|APIConnectionError|^FetchError$/;

/** The network, an overloaded server, a server that is down, or this machine. */
const isInfrastructure = (error: unknown) =>
  causes(error).some((each) => {
    if (each instanceof RunError) return true;
    if (!(each instanceof Error)) return false;
    const { code, status, statusCode } = each as { code?: unknown; status?: unknown; statusCode?: unknown };
    const http = Number(status ?? statusCode);
    return (
      (typeof code === "string" && brokenConnection.test(code)) ||
      [408, 429].includes(http) ||
      http >= 500 ||
      namesOf(each).some((name) => timedOut.test(name))
    );
  });

/**
 * Errors of agent frameworks that could not use a reply: the OpenAI Agents SDK, the AI SDK, LangChain and LangGraph, the
 * clients of OpenAI and Anthropic.
 */
const replyErrors =
  /ModelBehavior|MaxTurnsExceeded|ToolCallError|NoObjectGenerated|NoOutputGenerated|InvalidToolInput|NoSuchTool|TypeValidation|JSONParse|OutputPars|GraphRecursion|LengthFinishReason|ContentFilterFinishReason/;

const blamesReply = (error: unknown) =>
  causes(error).some((each) => each instanceof Error && namesOf(each).some((name) => replyErrors.test(name)));

/** Some libraries set `name`, others only the class's name. */
const namesOf = (error: Error) => [error.name, error.constructor.name];

/** What is kept of an attempt that is retried. */
export function withoutStack({ stack: _, ...rest }: Failure): Omit<Failure, "stack"> {
  return rest;
}
