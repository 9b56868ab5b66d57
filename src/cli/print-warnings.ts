/** Prints to standard error what is worth a warning about a configuration that nothing runs with. */
import type { ComposedConfig } from "../config/compose.ts";
import { warningLine } from "../config/warnings.ts";
import { checkSettings } from "../support/check-support.ts";

export function printWarnings(composed: ComposedConfig): void {
  for (const warning of checkSettings(composed, { dryRun: true })) process.stderr.write(`${warningLine(warning)}\n`);
}
