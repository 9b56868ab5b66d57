/** Parses a LightRFT command line to typed values, like LightRFT's own parser. */

import { z } from "zod";
import { nearest } from "../../nearest.ts";
import { checkValue } from "../compose/check.ts";
import { describeKey, type KeyDescription } from "../describe.ts";
import type { Mistake } from "../mistakes.ts";
import { oneLine } from "../tree/origin.ts";
import { type FlagName, type FlagValues, flagTable } from "./flags.ts";

export interface ParsedFlags {
  values: FlagValues;
  /** Each given flag as it was typed: `"--max_len 4096"`. */
  given: ReadonlyMap<string, string>;
}

/** Descriptions of all flags for help and messages. */
export const flagDescriptions: ReadonlyMap<string, KeyDescription> = new Map(
  flagTable.map(([name, { type }]) => [name, describeKey(name, type)]),
);

/** Every spelling of a flag, with the flag's name. */
export const spellings: ReadonlyMap<string, FlagName> = new Map(
  flagTable.flatMap(([name, { aliases = [], opposite }]) =>
    [name, ...aliases, ...(opposite === undefined ? [] : [opposite])].map((spelling) => [spelling, name]),
  ),
);

const opposites = new Set(flagTable.map(([, { opposite }]) => opposite));

/**
 * Reads `--flag value`, `--flag=value`, switches without a value and `--adam_betas 0.9 0.95`. The last value of a
 * repeated flag wins. Invalid input is added to `mistakes`; words before and between flags are added to `positional`.
 */
export function parseFlags(args: readonly string[], positional: string[], mistakes: Mistake[]): ParsedFlags {
  const found: Record<string, unknown> = {};
  const given = new Map<string, string>();
  for (let at = 0; at < args.length; ) {
    const typed = args[at++]!;
    if (!typed.startsWith("--")) {
      positional.push(typed);
      continue;
    }
    const [spelled = "", inline] = splitAt(typed.slice(2), "=");
    const name = spellings.get(spelled);
    if (name === undefined) {
      mistakes.push({ where: oneLine(typed), message: `unknown flag${suggestion(spelled)}` });
      if (inline === undefined && args[at]?.startsWith("--") === false) at++;
      continue;
    }
    const known = flagDescriptions.get(name)!;
    const words = inline === undefined ? [] : [inline];
    if (isSwitch(known)) {
      if (inline !== undefined) mistakes.push({ where: oneLine(typed), message: "does not take a value" });
      found[name] = !opposites.has(spelled);
    } else {
      const wanted = isPair(known) && !(inline ?? args[at] ?? "").includes(",") ? 2 : 1;
      while (words.length < wanted && at < args.length && !args[at]!.startsWith("--")) words.push(args[at++]!);
      if (words.length < wanted) {
        mistakes.push({ where: oneLine(typed), message: `needs ${wanted === 1 ? "a value" : "two values"}` });
        continue;
      }
      const value = readValue(known, words);
      const message = checkValue(known, value);
      if (message === undefined) found[name] = value;
      else mistakes.push({ where: oneLine(`--${spelled} ${words.join(" ")}`), message });
    }
    given.set(name, [inline === undefined ? typed : `--${spelled}`, ...words].join(" "));
  }
  for (const [name] of flagTable) {
    if (isRequired(flagDescriptions.get(name)!) && !given.has(name)) {
      mistakes.push({ where: `--${name}`, message: "is required" });
    }
  }
  const values = Object.fromEntries(
    [...flagDescriptions].map(([name, known]) => [name, Object.hasOwn(found, name) ? found[name] : known.default]),
  ) as FlagValues;
  return { values, given };
}

export function isSwitch({ type }: KeyDescription): boolean {
  return type === "true or false";
}

export const isRequired = ({ default: fallback }: KeyDescription) => fallback === undefined;

const isPair = ({ schema }: KeyDescription) => schema instanceof z.ZodDefault && schema.unwrap() instanceof z.ZodArray;

/** Reads numbers like Python: `1e-6`, `.5`, `1_000`. Anything else stays text, which the check rejects. */
function readValue(known: KeyDescription, words: readonly string[]): unknown {
  const texts = words.flatMap((word) => word.replace(/^[([](.*)[)\]]$/, "$1").split(",")).map((word) => word.trim());
  if (isPair(known)) return texts.map(number);
  const [word = ""] = words;
  return known.acceptsText ? word : number(word);
}

function number(word: string): unknown {
  const plain = /^[+-]?(\d+(_\d+)*\.?(\d+)?|\.\d+)(e[+-]?\d+)?$/i;
  return plain.test(word) ? Number(word.replaceAll("_", "")) : word;
}

function suggestion(spelled: string): string {
  const near = nearest(spelled.replaceAll("-", "_"), [...spellings.keys()], 2);
  return near.length > 0 ? `; did you mean ${near.map((name) => `--${name}`).join(" or ")}?` : "";
}

function splitAt(word: string, separator: string): [string, string | undefined] {
  const at = word.indexOf(separator);
  return at < 0 ? [word, undefined] : [word.slice(0, at), word.slice(at + 1)];
}
