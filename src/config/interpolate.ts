/**
 * `${a.b}` inside values: the value of another key, looked up from the root. A value that is nothing but one
 * reference takes the other's type; within text it is spelled out. `\${` is a literal `${`.
 */
import type { Mistake } from "./node.ts";
import { type Origin, oneLine } from "./origin.ts";
import { positionText } from "./read-yaml.ts";
import { didYouMean } from "./suggest.ts";

export interface Setting {
  value: unknown;
  origin: Origin;
}

/** Backslashes before `${` count in pairs; an odd one makes the `${` literal. */
const opening = /(\\*)\$\{/;
const longestText = 10_000;

export function hasReference(value: unknown): boolean {
  if (Array.isArray(value)) return value.some((item) => typeof item === "string" && opening.test(item));
  return typeof value === "string" && opening.test(value);
}

/** The text that reads back as `text`. */
export function escapeReferences(text: string): string {
  return text.replaceAll(/(\\*)\$\{/g, "$1$1\\${");
}

class ReferenceMistake extends Error {}

/** The settings with every reference replaced; those that cannot be are left out and listed in `mistakes`. */
export function interpolate(settings: ReadonlyMap<string, Setting>, mistakes: Mistake[]): Map<string, Setting> {
  const resolved = new Map<string, Setting>();
  const failed = new Set<string>();

  function resolve(key: string, path: readonly string[]): unknown {
    const done = resolved.get(key);
    if (done !== undefined) return done.value;
    if (path.includes(key)) throw new ReferenceMistake(`refers to itself: ${[...path, key].join(" -> ")}`);
    const setting = settings.get(key);
    if (setting === undefined)
      throw new ReferenceMistake(`refers to ${oneLine(key)}, which is no key${didYouMean(key, { keys: true })}`);
    if (failed.has(key)) throw new ReferenceMistake(`refers to ${key}, whose own reference is mistaken`);
    const lookUp = (other: string) => resolve(other, [...path, key]);
    const value = Array.isArray(setting.value)
      ? setting.value.map((item) => resolveText(item, lookUp))
      : resolveText(setting.value, lookUp);
    resolved.set(key, { value, origin: setting.origin });
    return value;
  }

  for (const [key, { origin }] of settings) {
    try {
      resolve(key, []);
    } catch (error) {
      if (!(error instanceof ReferenceMistake)) throw error;
      failed.add(key);
      mistakes.push({ where: positionText(origin), message: `${key} ${error.message}` });
    }
  }
  return resolved;
}

function resolveText(value: unknown, lookUp: (key: string) => unknown): unknown {
  if (typeof value !== "string") return value;
  let rest = value;
  let text = "";
  for (let match = opening.exec(rest); match !== null; match = opening.exec(rest)) {
    const backslashes = match[1]!.length;
    text += rest.slice(0, match.index) + "\\".repeat(Math.floor(backslashes / 2));
    rest = rest.slice(match.index + match[0].length);
    if (backslashes % 2 === 1) {
      text += "${";
      continue;
    }
    const end = rest.indexOf("}");
    const key = end < 0 ? rest : rest.slice(0, end);
    if (end < 0 || !/^\w+(\.\w+)*$/.test(key)) {
      throw new ReferenceMistake(
        `has a reference that is not understood: "\${${oneLine(key, 40)}"; it reads \${section.key}`,
      );
    }
    const found = lookUp(key);
    rest = rest.slice(end + 1);
    if (value === `\${${key}}`) return found;
    text += typeof found === "string" ? found : JSON.stringify(found);
    if (text.length > longestText) throw new ReferenceMistake(`becomes longer than ${longestText} characters`);
  }
  return text + rest;
}
