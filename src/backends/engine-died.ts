/** Errors of an engine that died or lost a model's state. */
import { RunError } from "../errors.ts";

/** The engine has ended, and everything in its memory is lost. */
export class EngineDied extends RunError {
  override name = "EngineDied";

  constructor(message: string, options: { details?: string | undefined; hint?: string; cause?: unknown } = {}) {
    super(message, { ...options, code: "engine_died" });
  }
}

/** The engine works, but lost the state of a model: a saved state can be loaded into a new policy. */
export class StateLost extends RunError {
  override name = "StateLost";

  constructor(message: string, options: { hint?: string; cause?: unknown } = {}) {
    super(message, { ...options, code: "state_lost" });
  }
}

/** The `StateLost` among an error and its causes. */
export function stateLostIn(error: unknown): StateLost | undefined {
  for (let each = error; each instanceof Error; each = each.cause) if (each instanceof StateLost) return each;
  return undefined;
}
