/** The schema as a flat list of keys: for help, the reference pages, and for checking single values. */
import { z } from "zod";
import { configSchema } from "./schema.ts";

export interface KeyDescription {
  /** `"rllm.trainer.total_epochs"` */
  key: string;
  /** What it takes, in words: `"integer >= 1"`, `"constant | linear | cosine"`. */
  type: string;
  default: unknown;
  description: string;
  /** Checks one value of this key. */
  schema: z.ZodType;
  /** Any text will do, so a number given for it is taken as its text. */
  takesText: boolean;
  /** The values to choose from, where they are listed. */
  options: readonly string[];
}

/** Every key of the configuration, in the schema's order. */
export const configKeys: ReadonlyMap<string, KeyDescription> = new Map(
  keysOf(configSchema, "").map((description) => [description.key, description]),
);

/** Every section (`"rllm"`, `"rllm.trainer"`, ...): the keys that hold keys. */
export const configSections: ReadonlySet<string> = new Set(
  [...configKeys.keys()].flatMap((key) => {
    const names = key.split(".");
    return names.slice(1).map((_, index) => names.slice(0, index + 1).join("."));
  }),
);

function keysOf(section: z.ZodObject, prefix: string): KeyDescription[] {
  return Object.entries(section.shape).flatMap(([name, child]) => {
    const inner = child instanceof z.ZodPrefault ? child.unwrap() : child;
    const key = prefix === "" ? name : `${prefix}.${name}`;
    if (inner instanceof z.ZodObject) return keysOf(inner, key);
    return [describeKey(key, inner as z.ZodType)];
  });
}

/** What of JSON Schema the leaves of this configuration use. */
interface LeafSchema {
  type?: string | string[];
  default?: unknown;
  description?: string;
  enum?: string[];
  anyOf?: LeafSchema[];
  items?: LeafSchema;
  minimum?: number;
  maximum?: number;
  exclusiveMinimum?: number;
  exclusiveMaximum?: number;
  minLength?: number;
}

function describeKey(key: string, schema: z.ZodType): KeyDescription {
  const leaf = z.toJSONSchema(schema, { io: "input" }) as LeafSchema;
  return {
    key,
    type: alternatives(leaf).map(typeText).join(" or "),
    default: leaf.default,
    description: leaf.description ?? "",
    schema,
    takesText: alternatives(leaf).some(({ type, enum: options }) => type === "string" && options === undefined),
    options: alternatives(leaf).flatMap(({ enum: options, items }) => options ?? items?.enum ?? []),
  };
}

/** JSON Schema writes "text or null" in two ways. */
function alternatives(leaf: LeafSchema): LeafSchema[] {
  const { anyOf, type } = leaf;
  return (
    anyOf ??
    (Array.isArray(type) ? type.map((one) => (one === "null" ? { type: one } : { ...leaf, type: one })) : [leaf])
  );
}

function typeText(leaf: LeafSchema): string {
  if (leaf.enum !== undefined) return leaf.enum.join(" | ");
  if (leaf.type === "array") return `list of ${typeText(leaf.items ?? {})}`;
  if (leaf.type === "boolean") return "true or false";
  if (leaf.type === "string") return leaf.minLength ? "text, not empty" : "text";
  if (leaf.type === "integer" || leaf.type === "number") return `${leaf.type}${rangeText(leaf)}`;
  return leaf.type === "null" ? "null" : "anything";
}

function rangeText(leaf: LeafSchema): string {
  const bounds = [
    bound(">=", leaf.minimum),
    bound(">", leaf.exclusiveMinimum),
    bound("<=", leaf.maximum),
    bound("<", leaf.exclusiveMaximum),
  ].filter((text) => text !== "");
  return bounds.length === 0 ? "" : ` ${bounds.join(" and ")}`;
}

/** The bounds of safe integers say nothing to a person. */
function bound(sign: string, value: number | undefined): string {
  return value === undefined || Math.abs(value) === Number.MAX_SAFE_INTEGER ? "" : `${sign} ${value}`;
}
