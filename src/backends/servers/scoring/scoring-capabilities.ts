/** The capabilities of an engine whose reward models run on servers. Loads nothing. */
import type { Capabilities } from "../../engine.ts";

export function scoringCapabilities(capabilities: Capabilities): Capabilities {
  const { outputs } = capabilities;
  return outputs.includes("scores") ? capabilities : { ...capabilities, outputs: [...outputs, "scores"] };
}
