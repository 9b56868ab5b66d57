/** The configuration's JSON Schema for editors: completion, hover text and error highlighting. */
import { z } from "zod";
import type { About } from "./schema/about.ts";
import { backendFacts } from "./schema/backends.ts";
import { configSchema } from "./schema.ts";
import { verlTypes } from "./verl-keys.ts";

interface JsonSchema {
  type?: string | string[];
  enum?: unknown[];
  anyOf?: JsonSchema[];
  properties?: Record<string, JsonSchema>;
  description?: string;
  [keyword: string]: unknown;
}

/** References (`${...}`) and required values (`???`), which are allowed in place of any value. */
const reference: JsonSchema = { type: "string", pattern: "\\$\\{.*\\}|^\\?\\?\\?$" };

/**
 * Draft 7, which YAML language servers read. It covers everything a file may contain: any part of the tree, `${...}` in
 * place of any value, Hydra's `defaults` and `hydra`, and verl's own sections with their documented keys.
 */
export function configJsonSchema(): Record<string, unknown> {
  const root = forEditors(toJson(configSchema));
  const { properties = {} } = root;
  for (const { ownSections = [] } of Object.values(backendFacts))
    for (const name of ownSections) properties[name] ??= {};
  for (const [path, leaf] of Object.entries(verlTypes)) addKey(root, path.split("."), forEditors(toJson(leaf)));
  properties.defaults = { description: "Hydra's defaults list: the configurations to compose." };
  properties.hydra = { description: "Hydra's own section, e.g. searchpath." };
  return { $schema: "http://json-schema.org/draft-07/schema#", title: "Hone configuration", ...root };
}

function toJson(schema: z.ZodType): JsonSchema {
  const { $schema: _, ...json } = z.toJSONSchema(schema, { io: "input", target: "draft-07" }) as JsonSchema;
  return json;
}

/** Allows references for every value and empty sections; the hover text lists keys without an effect. */
function forEditors(json: JsonSchema): JsonSchema {
  if (json.properties !== undefined) {
    const properties = Object.entries(json.properties).map(([name, child]) => [name, forEditors(child)] as const);
    // An open section accepts any further key.
    const additionalProperties = json.additionalProperties === false ? false : {};
    return { type: ["object", "null"], properties: Object.fromEntries(properties), additionalProperties };
  }
  const {
    description,
    default: fallback,
    later,
    secret: _secret,
    backends,
    instead,
    neutral,
    written,
    note,
    options,
    aliases,
    when: _when,
    ...type
  } = json as JsonSchema & About;
  const words = [
    description,
    backends && `Only on ${backends.join(", ")}.`,
    typeof later === "string" && `Has no effect: ${later}.`,
    note,
  ];
  const leaf: JsonSchema = { description: words.filter(Boolean).join(" ") };
  if (fallback !== undefined) leaf.default = fallback;
  if (options !== undefined) leaf.examples = options;
  leaf.anyOf = [...(type.anyOf ?? [type]), reference];
  if (aliases) leaf.anyOf.splice(-1, 0, { enum: Object.keys(aliases) });
  return leaf;
}

function addKey(section: JsonSchema, [name = "", ...rest]: string[], leaf: JsonSchema): void {
  section.properties ??= {};
  if (rest.length === 0) section.properties[name] = leaf;
  else {
    section.properties[name] ??= {};
    addKey(section.properties[name], rest, leaf);
  }
}
