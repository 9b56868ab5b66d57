/** Each key of a composed configuration with its value, origin and meaning. */
import { UserError } from "../errors.ts";
import type { ComposedConfig } from "./compose.ts";
import { configKeys, configSections } from "./describe.ts";
import { type Origin, originText } from "./origin.ts";
import type { Config } from "./schema.ts";
import { didYouMean } from "./suggest.ts";

export interface ExplainedKey {
  key: string;
  value: unknown;
  origin: Origin;
  /** The origin in words, e.g. `"gpu.yaml:3:5"`. */
  originText: string;
  default: unknown;
  type: string;
  description: string;
}

/**
 * All keys in the schema's order, or those of one key or section.
 * @throws UserError when `only` is neither
 */
export function explainConfig(composed: ComposedConfig, only?: string): ExplainedKey[] {
  if (only !== undefined && !configKeys.has(only) && !configSections.has(only)) {
    throw new UserError(`unknown key ${only}${didYouMean(only, { keys: true, sections: true })}`);
  }
  return [...configKeys.values()]
    .filter(({ key }) => only === undefined || key === only || key.startsWith(`${only}.`))
    .map(({ key, type, description, default: fallback }) => {
      const origin = composed.origins.get(key) ?? { kind: "default" };
      return {
        key,
        value: valueAt(composed.config, key),
        origin,
        originText: originText(origin),
        default: fallback,
        type,
        description,
      };
    });
}

/** The value of a key by its dotted path. */
export function valueAt(config: Config, key: string): unknown {
  return key.split(".").reduce<unknown>((section, name) => (section as Record<string, unknown>)[name], config);
}
