/** The gate between users' rewards and training: what passes is a finite number or an honest `null`. */
import type { Outcome } from "../agents/types.ts";
import { BadOutcome } from "./failures.ts";

const numberHint = "a reward is a finite number, or null when it is not known";

/**
 * @param value what a workflow returned
 * @param roles the roles that the rollout recorded, for checking `rewards`
 * @throws BadOutcome saying what was returned instead
 */
export function checkOutcome(value: unknown, roles: readonly string[]): Outcome {
  if (typeof value === "number") return { reward: checkReward(value, "returned") };
  if (value === undefined) throw new BadOutcome(`returned undefined (a missing return?); ${numberHint}`);
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new BadOutcome(`returned ${show(value)}; ${numberHint}`);
  }
  const outcome = value as Partial<Record<keyof Outcome, unknown>>;
  if (!("reward" in outcome)) throw new BadOutcome(`returned an object without \`reward\`: ${show(value)}`);
  checkReward(outcome.reward, "returned reward");
  checkType("correct", outcome.correct, "boolean");
  checkType("explanation", outcome.explanation, "string");
  for (const [name, metric] of entries(outcome.metrics, "metrics")) {
    if (typeof metric !== "number" || !Number.isFinite(metric)) {
      throw new BadOutcome(`returned metrics.${name} ${show(metric)}; a metric is a finite number`);
    }
  }
  for (const [role, reward] of entries(outcome.rewards, "rewards")) {
    checkReward(reward, `returned rewards.${role}`);
    if (reward !== null && !roles.includes(role)) {
      throw new BadOutcome(
        `returned a reward for the role "${role}", but the model was called as ${roles.join(", ")} only`,
      );
    }
  }
  return value as Outcome;
}

function checkReward(reward: unknown, what: string): number | null {
  if (reward === null || (typeof reward === "number" && Number.isFinite(reward))) return reward;
  throw new BadOutcome(`${what} ${show(reward)}; ${numberHint}`);
}

function checkType(name: string, value: unknown, type: "boolean" | "string"): void {
  if (value !== undefined && typeof value !== type)
    throw new BadOutcome(`returned ${name} ${show(value)}; it is a ${type}`);
}

function entries(value: unknown, name: string): [string, unknown][] {
  if (value === undefined) return [];
  if (typeof value !== "object" || value === null)
    throw new BadOutcome(`returned ${name} ${show(value)}; it is an object`);
  return Object.entries(value);
}

function show(value: unknown): string {
  if (typeof value === "number" || typeof value === "function" || value === undefined) return String(value);
  const text = JSON.stringify(value) ?? String(value);
  return text.length > 200 ? `${text.slice(0, 200)}...` : text;
}
