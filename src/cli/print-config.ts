/** Prints a composed configuration, or explains its keys. */
import type { ScriptFacts } from "../backends/rule.ts";
import type { ComposedConfig } from "../config/compose.ts";
import { shownTree } from "../config/secrets/without-secrets.ts";
import { printWarnings } from "../config/warnings.ts";
import { toYaml } from "../config/yaml/to-yaml.ts";
import { checkSettings } from "../support/check-support.ts";
import { type ExplainedKey, explainConfig } from "../support/explain.ts";
import { wrapped } from "./wrapped.ts";

export type Form = "yaml" | "json";

/**
 * @param explained the key or section to explain; true: all keys
 * @param script what is known of the experiment, if one is given
 */
export function printConfig(
  composed: ComposedConfig,
  format: Form,
  explained?: string | true,
  script?: ScriptFacts,
): void {
  printWarnings(checkSettings(composed, { script, dryRun: true }).warnings);
  for (const note of composed.notes) process.stderr.write(`note: ${note}\n`);
  if (explained !== undefined) {
    const keys = explainConfig(composed, explained === true ? undefined : explained, { script });
    if (format === "json") printJson(keys);
    else process.stdout.write(`${keys.map(explanation).join("\n\n")}\n`);
  } else if (format === "json") printJson(shownTree(composed.tree, composed.masks));
  else process.stdout.write(`${toYaml(composed.stored, composed.origins, { unresolved: true }).trimEnd()}\n`);
}

export function printJson(value: unknown): void {
  process.stdout.write(`${JSON.stringify(value, null, 2)}\n`);
}

function explanation({ key, value, originText, type, description, effect, note, ...rest }: ExplainedKey): string {
  const fallback = "default" in rest ? `, default ${JSON.stringify(rest.default)}` : "";
  return [
    `${key} = ${JSON.stringify(value)}`,
    `  ${wrapped(description, 2)}`,
    `  type:   ${wrapped(type + fallback, 10)}`,
    `  origin: ${wrapped(originText, 10)}`,
    `  effect: ${wrapped(effect, 10)}`,
    ...(note === undefined ? [] : [`  note:   ${wrapped(note, 10)}`]),
  ].join("\n");
}
