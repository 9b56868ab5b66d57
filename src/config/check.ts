/** Nodes against the schema: which keys they set to what, and every mistake in them. */
import { configKeys, configSections, type KeyDescription } from "./describe.ts";
import { hasReference } from "./interpolate.ts";
import type { Mistake, Node } from "./node.ts";
import { type Origin, oneLine } from "./origin.ts";
import { positionText } from "./read-yaml.ts";
import { didYouMean, suggestOptions } from "./suggest.ts";

export interface Assignment {
  key: string;
  value: unknown;
  origin: Origin;
}

/** The assignments of a tree. Values that refer to others (`${a.b}`) are checked once those are known. */
export function checkNode(node: Node, mistakes: Mistake[], section = ""): Assignment[] {
  const complain = (origin: Origin, message: string) => mistakes.push({ where: positionText(origin), message });
  if (node.kind === "value") {
    // A section whose keys are all commented out reads as null.
    if (node.value === null) return [];
    complain(node.origin, `${section === "" ? "a configuration" : section} holds keys, not ${showValue(node.value)}`);
    return [];
  }
  return node.entries.flatMap(({ name, origin, node: child }) => {
    const path = section === "" ? name : `${section}.${name}`;
    const known = configKeys.get(path);
    // A name with a dot in it would otherwise pass for the path it spells.
    if (name.includes(".") && (known !== undefined || configSections.has(path))) {
      complain(
        origin,
        `unknown key ${oneLine(name)}; here sections are nested, one line each: ${oneLine(name).replaceAll(".", ": ")}:`,
      );
      return [];
    }
    if (known !== undefined) return checkLeaf(known, child, mistakes);
    if (configSections.has(path)) return checkNode(child, mistakes, path);
    const unknown = writtenPath(path, child);
    const among = unknown.node.kind === "map" ? { sections: true } : { keys: true };
    complain(origin, `unknown key ${oneLine(unknown.path)}${didYouMean(unknown.path, among)}`);
    return [];
  });
}

/** An override spells its whole path, so the whole path is what may be mistyped. */
function writtenPath(path: string, node: Node): { path: string; node: Node } {
  const only = node.kind === "map" && node.entries.length === 1 ? node.entries[0]! : undefined;
  if (only === undefined || node.origin.kind !== "override") return { path, node };
  return writtenPath(`${path}.${only.name}`, only.node);
}

function checkLeaf(known: KeyDescription, node: Node, mistakes: Mistake[]): Assignment[] {
  const given = node.kind === "map" ? Object.fromEntries(node.entries.map(({ name }) => [name, "..."])) : node.value;
  const asText = node.kind === "value" && known.takesText && ["number", "boolean"].includes(typeof given);
  const value = asText ? (node.text ?? given) : given;
  if (!hasReference(value)) {
    const message = checkValue(known, value);
    if (message !== undefined) {
      mistakes.push({ where: positionText(node.origin), message });
      return [];
    }
  }
  return [{ key: known.key, value, origin: node.origin }];
}

/** What is wrong with a value of a key, or undefined. */
export function checkValue(known: KeyDescription, value: unknown): string | undefined {
  if (known.schema.safeParse(value).success) return undefined;
  const near = suggestOptions(value, known.options);
  const asList = known.type.startsWith("list of") && !Array.isArray(value) && typeof value === "string";
  const help = near.length > 0 ? `; did you mean ${near.join(", ")}?` : asList ? `; write [${oneLine(value)}]` : "";
  return `${known.key} takes ${known.type}, not ${showValue(value)}${help}`;
}

/** A value as a person would write it, with its kind where the spelling leaves it open. */
export function showValue(value: unknown): string {
  if (typeof value === "string") return value === "" ? "empty text" : `"${oneLine(value, 60)}"`;
  if (typeof value === "number" || typeof value === "boolean" || value === null) return String(value);
  if (typeof value === "object") {
    try {
      const json = JSON.stringify(value);
      if (json !== undefined) return oneLine(json, 60);
    } catch {
      // A cycle or a bigint: its kind says enough.
    }
  }
  return `a ${typeof value}`;
}
