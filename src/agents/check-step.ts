/** Checks that an environment returned a valid step, since scripts run without type checks. */
import { BadOutcome } from "./control-flow.ts";
import type { EnvironmentStep } from "./types.ts";

const form = "a step is { observation, reward, done }";

/** @throws BadOutcome naming the invalid part */
export function checkStep(step: unknown): EnvironmentStep {
  if (typeof step !== "object" || step === null) {
    const missing = step === undefined ? " (is a return or an await missing?)" : "";
    throw new BadOutcome(`returned ${String(step)}${missing}; ${form}`);
  }
  const { reward, done } = step as Partial<EnvironmentStep>;
  if (reward !== null && (typeof reward !== "number" || !Number.isFinite(reward))) {
    throw new BadOutcome(`returned the reward ${String(reward)}; it must be a finite number, or null if unknown`);
  }
  if (typeof done !== "boolean")
    throw new BadOutcome(`returned done: ${String(done)}; it must be true or false; ${form}`);
  return step as EnvironmentStep;
}
