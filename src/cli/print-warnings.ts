/** Prints to standard error what is worth a warning about a configuration that nothing runs with. */
import type { ComposedConfig } from "../config/compose.ts";
import { checkSettings } from "../config/support/check-support.ts";
import { warningLine } from "../config/warnings.ts";

export function printWarnings(composed: ComposedConfig): void {
  for (const warning of checkSettings(composed, { dryRun: true })) process.stderr.write(`${warningLine(warning)}\n`);
}
