/** The metadata of a configuration key, and types that many keys share. */
import { z } from "zod";
import type { Backend } from "./backends.ts";

/**
 * What a key's `.meta()` may contain besides `description`. The capability check, `hone config --explain`, editor hover
 * text and the reference pages all read it.
 */
export interface About {
  /**
   * Why the key has no effect so far, as one sentence. Any value other than the default is rejected at start with this
   * sentence. Delete it once the key takes effect.
   */
  later?: string;
  /**
   * The setting without which the key has no effect: `KEY=VALUE`, `KEY above 0`, or `KEY`, which is then not null. Of a section: for all its
   * keys except `KEY`.
   */
  when?: string;
  /** The backends that support the key; all if absent. On other backends only the default is accepted. */
  backends?: readonly Backend[];
  /** What to set instead when the key is rejected. */
  instead?: string;
  /** Values besides the default that change nothing and are never rejected. */
  neutral?: readonly unknown[];
  /** The default as the shipped YAML spells it, if it refers to other keys. */
  written?: string;
  /** How Hone, its reference document and the systems in that document differ on this key, and why. */
  note?: string;
  /** The value is never stored or shown; a reference such as `${oc.env:NAME}` is stored instead. */
  secret?: boolean;
  /** Older spellings of values. */
  aliases?: Readonly<Record<string, string>>;
  /** Known values of a key that also accepts others, such as the names of the user's own functions. */
  options?: readonly string[];
  /** The value may also be the path of a module, which `isModulePath` recognizes. */
  orModule?: boolean;
}

export const isModulePath = (name: string) => /\.[cm]?[jt]s$/.test(name);

declare module "zod" {
  interface GlobalMeta extends About {}
}

/** A section whose keys all have defaults, so the section itself may be missing. */
export function section<Shape extends z.ZodRawShape>(shape: Shape) {
  return z.strictObject(shape).prefault({} as z.input<z.ZodObject<Shape, z.core.$strict>>);
}

export const off = z.boolean().default(false);
export const on = z.boolean().default(true);
export const count = z.number().int();
export const positive = count.min(1);
export const notNegative = z.number().min(0);
export const aboveZero = z.number().gt(0);
export const share = z.number().min(0).max(1);
export const text = z.string().min(1);
export const optionalText = text.nullable().default(null);
/** Host names, IP addresses and networks, as `src/images/load-image.ts` reads them. */
export const hosts = z.array(text).default([]);
/** Arguments of the user's own classes and functions. */
export const freeArguments = z.record(z.string(), z.unknown());
