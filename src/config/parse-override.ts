/** One override of the command line, `a.b.c=value`, to nodes. Knows nothing of the schema. */
import { isScalar, parseDocument } from "yaml";
import type { Mistake, Node } from "./node.ts";
import { type Origin, oneLine } from "./origin.ts";
import { readYaml } from "./read-yaml.ts";

export type Override =
  /** The value wrapped in the sections of its key. */
  | { kind: "set"; node: Node }
  /** `~key`: back to the default, for a key or a whole section. */
  | { kind: "reset"; key: string; origin: Origin }
  | { kind: "mistake"; mistake: Mistake };

/** `+key=` and `++key=` mean the same as `key=`: the schema is closed, so nothing can be added to it. */
export function parseOverride(text: string): Override {
  const origin: Origin = { kind: "override", text };
  const mistake = (message: string): Override => ({ kind: "mistake", mistake: { where: oneLine(text), message } });
  if (text.startsWith("~")) {
    const key = text.slice(1).trim();
    if (key.includes("=")) return mistake("~key takes no value: it sets the key back to its default");
    return { kind: "reset", key, origin };
  }
  const equals = text.indexOf("=");
  if (equals < 0) return mistake("an override reads key=value, e.g. training.learning_rate=1e-4");
  const key = text
    .slice(0, equals)
    .trim()
    .replace(/^\+\+?/, "");
  if (key === "") return mistake("the key before = is missing");
  const value = parseValue(text.slice(equals + 1), origin);
  if ("mistake" in value) return mistake(value.mistake);
  const names = key.split(".").reverse();
  const node = names.reduce<Node>(
    (inner, name) => ({ kind: "map", origin, entries: [{ name, origin, node: inner }] }),
    value,
  );
  return { kind: "set", node };
}

/**
 * Lists, maps and quoted text are YAML's flow syntax. Anything else is one scalar up to the end of the argument:
 * `#`, `: ` and `*` mean nothing in it, because the shell has already said where it ends.
 */
function parseValue(text: string, origin: Origin): Node | { mistake: string } {
  const trimmed = text.trim();
  if (trimmed === "") return { kind: "value", origin, value: "" };
  if (/^[[{"']/.test(trimmed)) {
    const { node, mistakes } = readYaml(trimmed, () => origin);
    if (node !== undefined) return node;
    return { mistake: `the value is not YAML flow syntax: ${mistakes[0]?.message ?? "it holds nothing"}` };
  }
  if (trimmed.length < 100) {
    const { contents } = parseDocument(trimmed, { prettyErrors: false, logLevel: "silent" });
    if (isScalar(contents) && contents.type === "PLAIN" && contents.source === trimmed && contents.tag === undefined) {
      return { kind: "value", origin, value: contents.value, text: trimmed };
    }
  }
  return { kind: "value", origin, value: trimmed };
}
