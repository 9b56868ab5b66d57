/** What an engine can do with servers for its reward models. Loads nothing. */
import type { Capabilities } from "../../engine.ts";

export function scoringCapabilities(capabilities: Capabilities): Capabilities {
  const { outputs } = capabilities;
  return outputs.includes("scores") ? capabilities : { ...capabilities, outputs: [...outputs, "scores"] };
}
