/** Checks that an environment returned a valid step, since scripts run without type checks. */
import { BadOutcome } from "./control-flow.ts";
import type { EnvironmentStep } from "./types.ts";

const form = "a step is { observation, reward, done }";

/** @throws BadOutcome naming the invalid part */
export function checkStep(step: unknown): EnvironmentStep {
  if (typeof step !== "object" || step === null) {
    const missing = step === undefined ? " (a missing return, or await?)" : "";
    throw new BadOutcome(`answered ${String(step)}${missing}; ${form}`);
  }
  const { reward, done } = step as Partial<EnvironmentStep>;
  if (reward !== null && (typeof reward !== "number" || !Number.isFinite(reward))) {
    throw new BadOutcome(`answered the reward ${String(reward)}; it is a finite number, or null if it is not known`);
  }
  if (typeof done !== "boolean")
    throw new BadOutcome(`answered done: ${String(done)}, which is true or false; ${form}`);
  return step as EnvironmentStep;
}
