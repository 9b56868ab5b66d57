/** Turns the answers of a Tinker service into errors. */
import { RunError, UserError } from "../../errors.ts";
import { failureSchema, NonFiniteGradientError } from "../../tinker-protocol/failure.ts";
import { NonFiniteLossError } from "../check-loss-value.ts";
import { StateLost } from "../engine-died.ts";

/** The service does not know an accepted request any more, for example after a restart. */
export class LostResultError extends StateLost {
  override name = "LostResultError";
  constructor(id: string, why: string) {
    super(`the Tinker service lost the result of ${id}: ${why}`);
  }
}

/** The service asks for a later attempt. */
export class Busy extends RunError {}

/** The error of a failed future. */
export function futureFailure(answer: Record<string, unknown>): Error {
  const { error, category, code, message = error, hint, grad_norm } = failureSchema.parse(answer);
  switch (code) {
    case "state_lost":
      return new StateLost(`the Tinker service lost a part of this run: ${message}`);
    case "non_finite_loss":
      return new NonFiniteLossError(message);
    case "non_finite_gradient":
      return new NonFiniteGradientError(Number(grad_norm));
  }
  if (category === "user") return new UserError(`Tinker: ${message}`, { hint });
  return new RunError(`the Tinker service failed: ${message}`);
}

/** The error of a refused request. */
export function refusal(baseUrl: string, path: string, status: number, text: string): UserError {
  const hint = status === 401 || status === 403 ? "Check the API key in TINKER_API_KEY." : undefined;
  return new UserError(`the Tinker service at ${baseUrl} refused ${path} (${status}): ${detailOf(text)}`, { hint });
}

/** The explanation in an answer that is not a success. */
export function detailOf(text: string): string {
  try {
    const { detail } = JSON.parse(text) as { detail?: unknown };
    return typeof detail === "string" ? detail : text;
  } catch {
    return text;
  }
}

/** The same for all requests that wait for one reason, so that it is one line. */
export const waitingText = (reason: string): string => `waiting for the Tinker service: ${reason}`;

export const describeAnswer = (status: number, text: string): string => `${status} ${text}`.slice(0, 300);
