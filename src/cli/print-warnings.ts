/** Prints the warnings about a configuration without running it. */
import type { ComposedConfig } from "../config/compose.ts";
import { warningLine } from "../config/warnings.ts";
import { checkSettings } from "../support/check-support.ts";

export function printWarnings(composed: ComposedConfig): void {
  for (const warning of checkSettings(composed, { dryRun: true })) process.stderr.write(`${warningLine(warning)}\n`);
}
