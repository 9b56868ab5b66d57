/** Checks the user's input against the schema before composition: unknown keys and values of the wrong type. */

import { own } from "../../own.ts";
import { configKeys, configSections, type KeyDescription, openSections } from "../describe.ts";
import { isMistake, type Override } from "../hydra/parse-override.ts";
import { elementToNode, isSweep } from "../hydra/value.ts";
import type { Mistake } from "../mistakes.ts";
import { type Backend, backends } from "../schema/about.ts";
import { type MapNode, type Node, plain } from "../tree/node.ts";
import { type Origin, oneLine } from "../tree/origin.ts";
import { putNode } from "../tree/tree.ts";
import { positionText } from "../yaml/read-yaml.ts";
import { backendSettings } from "./backends.ts";
import { didYouMean, fieldName, suggestOptions } from "./suggest.ts";

/** Collects the mistakes in a file or a script. Keys in verl's own sections are checked against verl's tree instead. */
export function checkLayer(layer: MapNode, backend: Backend, mistakes: Mistake[]): void {
  checkSection(layer, "", { backend, mistakes, adds: false });
}

/** Collects the mistakes in command-line overrides. Hydra's composition checks config groups (`rllm/backend=verl`). */
export function checkOverrides(
  overrides: readonly (Override | Mistake)[],
  backend: Backend,
  mistakes: Mistake[],
): void {
  for (const one of overrides) {
    if (isMistake(one)) mistakes.push(one);
    // Hydra's composition checks its own settings.
    else if (!/[/]|^hydra\./.test(one.key) && one.package === undefined && !isSweep(one.value)) {
      checkOverride(one, { backend, mistakes, adds: one.kind === "force-add" || one.kind === "add" });
    }
  }
}

interface Check {
  backend: Backend;
  mistakes: Mistake[];
  /** Whether unknown keys of verl's sections may be added. */
  adds: boolean;
}

function checkOverride({ kind, key, value, text }: Override, check: Check): void {
  const origin: Origin = { kind: "override", text };
  if (kind === "delete") {
    if (configKeys.has(key) || configSections.has(key) || isOwnKey(key, check)) return;
    complain(check, origin, `unknown key ${oneLine(key)}${didYouMean(key, { keys: true, sections: true })}`);
    return;
  }
  if (value === undefined || isSweep(value)) return;
  const root: MapNode = { kind: "map", origin, entries: [] };
  putNode(root, key, elementToNode(value, origin));
  checkSection(root, "", check);
}

function checkSection(node: Node, section: string, check: Check): void {
  if (node.kind !== "map") {
    // A section whose keys are all commented out reads as null.
    if (node.kind === "value" && (node.value === null || refers(node.value))) return;
    const what = section === "" ? "the configuration" : section;
    complain(check, node.origin, `${what} must be a section with keys, not ${showValue(plain(node))}`);
    return;
  }
  for (const { name, origin, node: child } of node.entries) {
    const path = section === "" ? name : `${section}.${name}`;
    const known = configKeys.get(path);
    // Otherwise a name containing a dot would be mistaken for a path.
    if (name.includes(".") && (known !== undefined || configSections.has(path))) {
      const nested = oneLine(name).replaceAll(".", ": ");
      complain(check, origin, `unknown key ${oneLine(name)}; nest the sections instead, one line each: ${nested}:`);
    } else if (known !== undefined) checkLeaf(known, child, child.origin, check.mistakes);
    else if (configSections.has(path)) checkSection(child, path, check);
    else if (!openSections.has(section) && !isOwnKey(path, check)) {
      const { path: written, node } = writtenPath(path, child);
      complain(check, origin, `unknown key ${oneLine(written)}${keyHelp(written, node)}`);
    }
  }
}

function keyHelp(path: string, node: Node): string {
  const owner = fieldName(path) === undefined ? ownerOf(path) : undefined;
  const ownHelp = owner === undefined ? "" : ` (${owner}'s own sections require rllm/backend=${owner})`;
  return didYouMean(path, node.kind === "map" ? { sections: true } : { keys: true }) + ownHelp;
}

/** The backend that alone has the section of a path. */
function ownerOf(path: string): string | undefined {
  const [root = ""] = path.split(".");
  if (configSections.has(root)) return undefined;
  return backends.find((backend) => backendSettings[backend].ownSections.includes(root));
}

/** Whether the path is in one of the sections that the backend's own tree defines. */
function isOwnKey(path: string, { backend }: Check): boolean {
  const [root = ""] = path.split(".");
  return backendSettings[backend].ownSections.includes(root);
}

function complain({ mistakes }: Check, origin: Origin, message: string): void {
  mistakes.push({ where: positionText(origin), message });
}

/** An override contains the whole path, so any part of the path may be mistyped. */
function writtenPath(path: string, node: Node): { path: string; node: Node } {
  const [only, ...others] = node.kind === "map" ? node.entries : [];
  if (only === undefined || others.length > 0 || node.origin.kind !== "override") return { path, node };
  return writtenPath(`${path}.${only.name}`, only.node);
}

const refers = (value: unknown): boolean =>
  typeof value === "string" ? value.includes("${") : Array.isArray(value) && value.some(refers);

/** Checks a value. References and `???` are checked later, once their value is known. */
function checkLeaf(known: KeyDescription, node: Node, origin: Origin, mistakes: Mistake[]): void {
  const value = keyValue(known, node);
  if (refers(value) || value === "???") return;
  const message = checkValue(known, value);
  if (message !== undefined) mistakes.push({ where: positionText(origin), message });
}

/** The value of a key. A key that accepts text such as `off` or `1` gets it as spelled, not as a boolean or number. */
export function keyValue(known: KeyDescription, node: Node): unknown {
  const given = plain(node);
  if (node.kind !== "value" || given === null) return given;
  const text = node.text ?? (typeof given === "number" ? String(given) : undefined);
  if (typeof given === "string" && own(known.about.aliases, given) !== undefined)
    return own(known.about.aliases, given);
  return text !== undefined && (known.acceptsText || known.options.includes(text)) ? text : given;
}

/** Returns what is wrong with a value of a key, or undefined. */
export function checkValue(known: KeyDescription, value: unknown): string | undefined {
  const { success, error } = known.schema.safeParse(value);
  if (success) return undefined;
  const near = suggestOptions(value, known.options);
  const asList = known.type.startsWith("list of") && !Array.isArray(value) && typeof value === "string";
  const help = near.length > 0 ? `; did you mean ${near.join(", ")}?` : asList ? `; write [${oneLine(value)}]` : "";
  if (known.about.secret) return `${known.key} expects ${known.type} (the value is not shown)`;
  const custom = error.issues.find(({ code }) => code === "custom");
  const rule = custom === undefined ? "" : `; it ${custom.message}`;
  return `${known.key} expects ${known.type}, got ${showValue(value)}${rule}${help}`;
}

/** A value as a person would write it; values that cannot be written are shown by their type. */
export function showValue(value: unknown): string {
  if (typeof value === "string") return value === "" ? "empty text" : `"${oneLine(value, 60)}"`;
  if (typeof value === "number" || typeof value === "boolean" || value === null) return String(value);
  if (typeof value === "object") {
    try {
      const json = JSON.stringify(value);
      if (json !== undefined) return oneLine(json, 60);
    } catch {
      // For a cycle or a bigint, the type is enough.
    }
  }
  return `a ${typeof value}`;
}
