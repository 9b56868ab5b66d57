/** Prints to standard error what is worth a warning about a configuration that nothing runs with. */
import { unsupportedSettings, unsupportedWarning } from "../config/check-support.ts";
import type { ComposedConfig } from "../config/compose.ts";
import { warningLine } from "../config/warnings.ts";

export function printWarnings(composed: ComposedConfig): void {
  const unsupported = unsupportedSettings(composed).map((one) => unsupportedWarning(one, { dryRun: true }));
  for (const warning of [...composed.warnings, ...unsupported]) process.stderr.write(`${warningLine(warning)}\n`);
}
