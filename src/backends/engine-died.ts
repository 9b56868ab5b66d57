/** An engine that has ended of itself: nothing that it held is there any more. */
import { RunError } from "../errors.ts";

export class EngineDied extends RunError {
  override name = "EngineDied";
}

/** What an engine held of a model is gone although the engine works: a saved state can be loaded into a new policy. */
export class StateLost extends RunError {
  override name = "StateLost";
}

/** The loss behind an error, wherever in its causes it is. */
export function stateLostIn(error: unknown): StateLost | undefined {
  for (let each = error; each instanceof Error; each = each.cause) if (each instanceof StateLost) return each;
  return undefined;
}
