/** What the schema says of a key beside its type, and the types that many keys share. */
import { z } from "zod";

export const backends = ["local", "tinker", "verl"] as const;
export type Backend = (typeof backends)[number];

/**
 * What a key's `.meta()` may hold beside `description`. The capability check, `hone config --explain`, editors' hover
 * text and the reference pages all read it.
 */
export interface About {
  /**
   * What is missing before the key acts, as one sentence. While it stands, the key may only keep its default: anything
   * else is refused at start with this sentence. Given by value, it holds for those values alone. Whoever makes the key
   * act deletes it.
   */
  later?: string | Readonly<Record<string, string>>;
  /** The backends that honour the key; absent: all. Elsewhere it may only keep its default. */
  backends?: readonly Backend[];
  /** What to set instead where the key is refused. */
  instead?: string;
  /** Values beside the default that change nothing, so that they are never refused. */
  neutral?: readonly unknown[];
  /** The default as the shipped YAML spells it, where it refers to other keys. */
  written?: string;
  /** Where the document and the systems it describes disagree, or where Hone's default is not the document's, and why. */
  note?: string;
  /** The value is stored and shown nowhere; a reference such as `${oc.env:NAME}` is stored in its place. */
  secret?: boolean;
  /** Older spellings of values. */
  aliases?: Readonly<Record<string, string>>;
  /** Values to choose from where others are allowed too, such as the names of the user's own functions. */
  options?: readonly string[];
}

declare module "zod" {
  interface GlobalMeta extends About {}
}

export const count = z.number().int();
export const share = z.number().min(0).max(1);
export const text = z.string().min(1);
/** What the user's own classes and functions take. */
export const freeArguments = z.record(z.string(), z.unknown());
