/** Parses a command-line override: its kind, its key or config group, and its value. */
import type { Mistake } from "../mistakes.ts";
import { oneLine } from "../tree/origin.ts";
import { parseValue } from "./parse-value.ts";
import { type Value, ValueMistake } from "./value.ts";

export interface Override {
  /** `key=`, `+key=`, `++key=`, `~key`. */
  kind: "change" | "add" | "force-add" | "delete";
  /** A dotted key, or a config group: `rllm/backend`. */
  key: string;
  /** The package in `group@package=option`. */
  package: string | undefined;
  /** Undefined for a bare `~key`. */
  value: Value | undefined;
  /** The override as typed. */
  text: string;
}

const name = "[A-Za-z_$][\\w\\-$]*";
const part = `(?:${name}|0|[1-9](?:_?\\d)*)`;
const dotted = `(?:${part}(?:\\.${part})+|${name})`;
const group = "[A-Za-z_][\\w-]*(?:/[A-Za-z_][\\w-]*)+";
const keyPattern = new RegExp(`^(?<key>${group}|${dotted})(?:@(?<package>${dotted}|))?$`);
const longest = 100_000;

const kinds = { "": "change", "+": "add", "++": "force-add", "~": "delete" } as const;

/** @returns the override, or a mistake */
export function parseOverride(text: string): Override | Mistake {
  const where = oneLine(text);
  if (text.length > longest) return { where, message: `is longer than ${longest} characters` };
  const equals = text.indexOf("=");
  const left = equals < 0 ? text : text.slice(0, equals);
  const mark = (["++", "+", "~"] as const).find((each) => left.startsWith(each)) ?? "";
  const spelled = left.slice(mark.length);
  const kind = kinds[mark];
  if (equals < 0 && kind !== "delete") {
    return { where, message: "an override has the form key=value, e.g. training.learning_rate=1e-4" };
  }
  if (spelled === "") return { where, message: "the key before = is missing" };
  const match = keyPattern.exec(spelled);
  if (match === null) return { where, message: keyMessage(spelled) };
  const { key, package: place } = match.groups as { key: string; package?: string };
  try {
    const value = equals < 0 ? undefined : parseValue(text.slice(equals + 1));
    return { kind, key, package: place, value, text };
  } catch (error) {
    if (!(error instanceof ValueMistake)) throw error;
    return { where, message: error.message };
  }
}

export const isMistake = (parsed: Override | Mistake): parsed is Mistake => "message" in parsed;

function keyMessage(spelled: string): string {
  const shown = oneLine(spelled, 60);
  if (/\s/.test(spelled))
    return `the key ${JSON.stringify(shown)} contains spaces; write key=value without spaces before =`;
  if (spelled.includes("[")) {
    return `the key ${shown} contains brackets; items of a list are spelled key.0, and a list is set as a whole: key=[1,2]`;
  }
  if (spelled.startsWith("-")) return `${shown} is not an option here, and keys do not begin with a hyphen`;
  return `${shown} is neither a dotted key (training.eps) nor a config group (rllm/backend)`;
}
