/** Suggestions for mistyped keys and values. */
import { nameDistance, nearest } from "../../nearest.ts";
import { configKeys, configSections } from "../describe.ts";
import { fieldName } from "./field-names.ts";

const leafOf = (key: string) => key.slice(key.lastIndexOf(".") + 1);
const parentOf = (key: string) => key.slice(0, Math.max(0, key.lastIndexOf(".")));

/** Kinds of names to suggest. */
export interface Among {
  keys?: boolean;
  sections?: boolean;
}

/**
 * Up to three known names similar to `name`, most likely first: names that differ by typing mistakes, and the same
 * name elsewhere in the tree (`learning_rate` -> `training.learning_rate`).
 */
function suggestKeys(name: string, among: Among): string[] {
  const candidates = [...(among.keys ? configKeys.keys() : []), ...(among.sections ? configSections : [])];
  const scored = candidates.map((known) => {
    const leaf = nameDistance(leafOf(name), leafOf(known));
    const elsewhere = parentOf(known) === parentOf(name) ? 0 : leaf === 0 ? 0.5 : 1.5;
    return { known, score: Math.min(nameDistance(name, known), leaf + elsewhere) };
  });
  const best = Math.min(...scored.map(({ score }) => score));
  return scored
    .filter(({ score }) => score < Number.POSITIVE_INFINITY && score <= best + 1)
    .sort((left, right) => left.score - right.score)
    .slice(0, 3)
    .map(({ known }) => known);
}

/** What the key is called here, `"; did you mean a or b?"`, or the keys of the deepest known section on the path. */
export function didYouMean(name: string, among: Among): string {
  const elsewhere = fieldName(name);
  if (elsewhere !== undefined) return `: ${elsewhere}`;
  const near = suggestKeys(name, among);
  if (near.length > 0) return `; did you mean ${near.join(" or ")}?`;
  let section = parentOf(name);
  while (section !== "" && !configSections.has(section)) section = parentOf(section);
  const prefix = section === "" ? "" : `${section}.`;
  const children = [...configKeys.keys(), ...configSections]
    .filter((known) => known.startsWith(prefix) && !known.slice(prefix.length).includes("."))
    .map((known) => known.slice(prefix.length));
  return `; ${section === "" ? "the configuration" : section} has ${children.join(", ")}`;
}

/** The listed options most similar to the invalid ones among the given values. */
export function suggestOptions(given: unknown, options: readonly string[]): string[] {
  const values = Array.isArray(given) ? given : [given];
  return values
    .filter((value): value is string => typeof value === "string" && !options.includes(value))
    .flatMap((value) => nearest(value, options, 1));
}
