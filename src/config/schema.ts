/**
 * The single source of Hone's configuration: types, defaults, validation, help, editor completion and the reference
 * pages derive from it. Keys are spelled as in the reference documents; the sections are in schema/.
 */
import { z } from "zod";
import { type About, section } from "./schema/about.ts";
import { backends } from "./schema/backends.ts";
import {
  agent,
  algorithm,
  asyncTraining,
  chat,
  compactFiltering,
  critic,
  dynamicSampling,
  env,
  episodeLogging,
  gateway,
  processingFlags,
  rejectionSample,
  remoteRuntime,
  reward,
  rollout,
  samplingBlock,
  sdk,
  stepwiseAdvantage,
  trainer,
  workflow,
} from "./schema/rllm.ts";
import {
  data,
  distill,
  distillation,
  dpo,
  local,
  model,
  rllmData,
  rolloutEngine,
  sft,
  tinkerKeys,
  training,
  validation,
} from "./schema/training.ts";
import { parentOf } from "./tree.ts";

const rllm = section({
  backend: z.enum(backends).default("local").describe("Backend that samples and trains.").meta({
    note: "rllm/backend=tinker on the command line also loads that backend's defaults.",
  }),
  on_unsupported: z
    .enum(["error", "warn"])
    .default("error")
    .describe(
      "How to treat settings that the backend or the machine does not support: error stops before the run starts; warn continues with their defaults. Settings that contradict each other always stop the run.",
    ),
  data: rllmData,
  agent,
  env,
  workflow,
  rollout,
  trainer,
  algorithm,
  stepwise_advantage: stepwiseAdvantage,
  critic,
  ...processingFlags,
  chat,
  compact_filtering: compactFiltering,
  rejection_sample: rejectionSample,
  dynamic_sampling: dynamicSampling,
  reward,
  distill,
  sdk,
  gateway,
  episode_logging: episodeLogging,
  async_training: asyncTraining,
  remote_runtime: remoteRuntime,
});

export const configSchema = z.strictObject({
  rllm,
  ...tinkerKeys,
  model,
  training,
  sft,
  dpo,
  validation,
  sampling: samplingBlock,
  rollout_engine: rolloutEngine,
  data,
  distillation,
  local,
});

/** The composed configuration with all defaults filled in. */
export type Config = z.output<typeof configSchema>;
/** The configuration as a user writes it: any part of the tree. */
export type ConfigInput = z.input<typeof configSchema>;

// The schema as a flat list of keys, for help, the reference pages and checks of single values.

export interface KeyDescription {
  /** `"rllm.trainer.total_epochs"` */
  key: string;
  /** The type in words: `"integer >= 1"`, `"constant | linear | cosine"`. */
  type: string;
  default: unknown;
  description: string;
  /** Checks a value of this key. */
  schema: z.ZodType;
  /** Whether the key accepts any text, so a number is read as text. */
  acceptsText: boolean;
  /** The listed values, if any. */
  options: readonly string[];
  /** The key's metadata from the schema. */
  about: About;
  /** What the key and the sections around it require (`About.when`), outermost first. */
  when: readonly string[];
}

/** Every key of the configuration, in the schema's order. */
export const configKeys: ReadonlyMap<string, KeyDescription> = new Map(
  keysOf(configSchema).map((description) => [description.key, description]),
);

/** Sections that accept further keys, e.g. `"rllm.rollout.train"`, with the metadata of those keys. */
export const openSections: ReadonlyMap<string, About> = new Map(openSectionsOf(configSchema, ""));

/** The open section of an unlisted key; undefined for all other paths. */
export function openSectionOf(path: string): string | undefined {
  const section = parentOf(path);
  return openSections.has(section) && !configKeys.has(path) && !configSections.has(path) ? section : undefined;
}

/** Every section (`"rllm"`, `"rllm.trainer"`, ...): paths that contain keys. */
export const configSections: ReadonlySet<string> = new Set(
  [...configKeys.keys()].flatMap((key) => {
    const names = key.split(".");
    return names.slice(1).map((_, index) => names.slice(0, index + 1).join("."));
  }),
);

function keysOf(section: z.ZodObject, prefix = "", around: KeyDescription["when"] = []): KeyDescription[] {
  return childrenOf(section, prefix).flatMap(([key, child, about]) => {
    const when = about.when === undefined ? around : [...around, about.when];
    if (child instanceof z.ZodObject) return keysOf(child, key, when);
    return [
      describeKey(
        key,
        child,
        when.filter((condition) => !condition.startsWith(`${key}=`)),
      ),
    ];
  });
}

function openSectionsOf(section: z.ZodObject, prefix: string): [string, About][] {
  const catchall = section.def.catchall as z.ZodType | undefined;
  const own: [string, About][] = catchall && !(catchall instanceof z.ZodNever) ? [[prefix, catchall.meta() ?? {}]] : [];
  const inner = childrenOf(section, prefix).flatMap(([key, child]) =>
    child instanceof z.ZodObject ? openSectionsOf(child, key) : [],
  );
  return [...own, ...inner];
}

function childrenOf(section: z.ZodObject, prefix: string): [string, z.ZodType, About][] {
  return Object.entries(section.shape).map(([name, child]) => [
    prefix === "" ? name : `${prefix}.${name}`,
    (child instanceof z.ZodPrefault ? child.unwrap() : child) as z.ZodType,
    (child as z.ZodType).meta() ?? {},
  ]);
}

/** The subset of JSON Schema that the leaves of this configuration use. */
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
  /** The type in words, for text that must match a pattern. */
  title?: string;
}

/** Describes one key. Types in words are derived from JSON Schema, which is slow, so they are computed on first use. */
export function describeKey(key: string, schema: z.ZodType, when: KeyDescription["when"] = []): KeyDescription {
  const about: About & { description?: string | undefined } = schema.meta() ?? {};
  let cached: LeafSchema[] | undefined;
  const leaf = () => {
    cached ??= alternatives(z.toJSONSchema(schema, { io: "input" }) as LeafSchema);
    return cached;
  };
  return {
    key,
    get type() {
      const types = leaf().map(typeText);
      const named = about.options === undefined ? [] : [`${about.options.join(" | ")}`, "another name"];
      return [...named, ...types.filter((type) => named.length === 0 || !/^(non-empty )?text$/.test(type))].join(
        " or ",
      );
    },
    default: schema instanceof z.ZodDefault ? schema.def.defaultValue : undefined,
    description: about.description ?? "",
    schema,
    get acceptsText() {
      return leaf().some(({ type, enum: options }) => type === "string" && options === undefined);
    },
    get options() {
      return about.options ?? leaf().flatMap(({ enum: options, items }) => options ?? items?.enum ?? []);
    },
    about,
    when,
  };
}

/** Normalizes the two ways in which JSON Schema spells "text or null". */
function alternatives(leaf: LeafSchema): LeafSchema[] {
  const { anyOf, type } = leaf;
  return (
    anyOf ??
    (Array.isArray(type) ? type.map((one) => (one === "null" ? { type: one } : { ...leaf, type: one })) : [leaf])
  );
}

function typeText(leaf: LeafSchema): string {
  const several = alternatives(leaf);
  if (several.length > 1) return several.map(typeText).join(" or ");
  if (leaf.title !== undefined) return leaf.title;
  if (leaf.enum !== undefined) return leaf.enum.join(" | ");
  if (leaf.type === "array") return `list of ${typeText(leaf.items ?? {})}`;
  if (leaf.type === "boolean") return "true or false";
  if (leaf.type === "string") return leaf.minLength ? "non-empty text" : "text";
  if (leaf.type === "integer" || leaf.type === "number") return `${leaf.type}${rangeText(leaf)}`;
  if (leaf.type === "object") return "section with any keys";
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

/** Omits the bounds of safe integers, which are not useful to a reader. */
function bound(sign: string, value: number | undefined): string {
  return value === undefined || Math.abs(value) === Number.MAX_SAFE_INTEGER ? "" : `${sign} ${value}`;
}
