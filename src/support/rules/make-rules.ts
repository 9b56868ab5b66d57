/** Short ways to write rules, and the lists of keys that they are about. */
import { isDeepStrictEqual } from "node:util";
import type { Capabilities } from "../../backends/engine.ts";
import type { Rule, ScriptFacts, Situation } from "../../backends/rule.ts";
import { sharedKeys } from "../../config/compose/sync/shared-keys.ts";
import { configKeys } from "../../config/describe.ts";
import type { Config } from "../../config/schema.ts";
import { valueAt } from "../../config/tree/value-at.ts";

/** Settings that are unsupported on an engine without some ability. */
export function ability(
  keys: readonly string[],
  requires: string,
  isMet: (capabilities: Capabilities, value: unknown, situation: Situation) => boolean,
): Rule {
  return {
    outcome: "unsupported",
    keys,
    requires,
    isMet: (situation, value) => isMet(situation.capabilities, value, situation),
    byEngine: true,
  };
}

/** Settings that have no effect unless other settings have some value. */
export function needs(
  requires: string,
  keys: readonly string[],
  isMet: (config: Config, script: ScriptFacts | undefined) => boolean | undefined,
): Rule {
  return { outcome: "no effect", keys, requires, isMet: ({ config, script }) => isMet(config, script) };
}

export function needsValue(key: string, value: string | boolean | null, keys: readonly string[]): Rule {
  return needs(`${key}=${value}`, keys, (config) => isDeepStrictEqual(valueAt(config, key), value));
}

/** Settings that contradict others. */
export function contradicts(
  keys: readonly string[],
  requires: string,
  isMet: (config: Config, script: ScriptFacts | undefined) => boolean | undefined,
  hint?: string,
): Rule {
  return { ...needs(requires, keys, isMet), outcome: "invalid", ...(hint === undefined ? {} : { hint }) };
}

export function under(section: string, ...names: string[]): string[] {
  return names.map((name) => `${section}.${name}`);
}

/** All keys of a section, without those named. */
export function below(section: string, ...except: string[]): string[] {
  return [...configKeys.keys()].filter(
    (key) => key.startsWith(`${section}.`) && !under(section, ...except).includes(key),
  );
}

/** Keys of `rllm` with their other names. */
export function withOlderNames(keys: readonly string[]): string[] {
  return keys.flatMap((key) => [key, ...sharedKeys.filter(([, rllm]) => rllm === key).map(([native]) => native)]);
}
