/** Prints the warnings about a configuration without running it. */
import type { ScriptFacts } from "../backends/rule.ts";
import type { ComposedConfig } from "../config/compose.ts";
import { warningLine } from "../config/warnings.ts";
import { checkSettings } from "../support/check-support.ts";

/** @returns whether a run would stop because of its settings */
export function printWarnings(composed: ComposedConfig, script?: ScriptFacts): boolean {
  const { warnings, isRefused } = checkSettings(composed, { script, dryRun: true });
  for (const warning of warnings) process.stderr.write(`${warningLine(warning)}\n`);
  return isRefused;
}
