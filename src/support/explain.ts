/** Explains the keys of a composed configuration: value, origin, meaning and effect. */

import { reasonUnused } from "../backends/registry/open-engine.ts";
import { didYouMean } from "../config/compose/suggest.ts";
import { verlTypes } from "../config/compose/sync/verl-keys.ts";
import type { ComposedConfig } from "../config/compose.ts";
import { configKeys, configSections, describeKey } from "../config/describe.ts";
import { shownValue } from "../config/secrets/without-secrets.ts";
import { type Origin, originText } from "../config/tree/origin.ts";
import { valueAt } from "../config/tree/value-at.ts";
import { UserError } from "../errors.ts";
import { own } from "../own.ts";
import { isRefused, reasonText } from "./check-support.ts";
import { type Effect, effectOf, type Facts } from "./effect.ts";

export interface ExplainedKey {
  key: string;
  value: unknown;
  origin: Origin;
  /** The origin in words, e.g. `"gpu.yaml:3:5"`. */
  originText: string;
  /** Absent for verl's own keys. */
  default?: unknown;
  type: string;
  description: string;
  /** The effect of this value on the chosen backend. */
  effect: string;
  /** How Hone, its reference document and the systems in that document differ on this key. */
  note?: string;
}

/**
 * All keys in the schema's order, then the backend's own; with `only`, that key or section.
 * @throws UserError when `only` is not a key or section
 */
export function explainConfig(composed: ComposedConfig, only?: string, facts: Facts = {}): ExplainedKey[] {
  const natives = [...composed.origins.keys()].filter((path) => !configKeys.has(path));
  const asked = (key: string) => only === undefined || key === only || key.startsWith(`${only}.`);
  const keys = [...configKeys.keys(), ...natives].filter(asked);
  if (only !== undefined && keys.length === 0 && !configSections.has(only)) {
    throw new UserError(`unknown key ${only}${didYouMean(only, { keys: true, sections: true })}`);
  }
  return keys.map((key) => explainKey(composed, key, facts));
}

function explainKey(composed: ComposedConfig, key: string, facts: Facts): ExplainedKey {
  const origin = composed.origins.get(key) ?? { kind: "default" };
  const known = configKeys.get(key);
  const found = { key, origin, originText: originText(origin) };
  if (known !== undefined) {
    const { type, description, default: fallback, about } = known;
    return {
      ...found,
      value: shownValue(valueAt(composed.config, key), composed.masks, key),
      default: fallback,
      type,
      description,
      effect: effectText(composed, origin, effectOf(composed, known, facts)),
      ...(about.note === undefined ? {} : { note: about.note }),
    };
  }
  const { config } = composed;
  const unused = reasonUnused(composed, key);
  const schema = own(verlTypes, key);
  const native = schema && describeKey(key, schema);
  return {
    ...found,
    value: shownValue(valueAt(composed.tree, key), composed.masks, key),
    type: native?.type ?? "anything",
    description: native?.description ?? "Key of the backend's own configuration.",
    effect: unused === undefined ? "passed to the backend unchanged" : `none on ${config.rllm.backend}: ${unused}`,
  };
}

function effectText(composed: ComposedConfig, origin: Origin, effect: Effect): string {
  const { backend } = composed.config.rllm;
  if (effect.kind === "acts") {
    return `takes effect on ${backend}${effect.provided === undefined ? "" : `; it requires ${effect.provided}`}`;
  }
  const reason = reasonText(effect);
  if (effect.kind === "no effect") return `none on ${backend}: ${reason}`;
  return `${isRefused(composed, origin, effect) ? "refused" : "ignored"} on ${backend}: ${reason}`;
}
