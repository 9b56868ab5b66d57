/**
 * Replaces references with their values. A value that consists of a single reference takes the type of its target, even a section; inside
 * text, the value is formatted like in Python.
 */
import { nearest } from "../../base/text.ts";
import { mistakesError } from "../secrets.ts";
import {
  childOf,
  type MapNode,
  type Mistake,
  type Node,
  nodeAt,
  type Origin,
  oneLine,
  pathsIn,
  type ValueNode,
} from "../tree.ts";
import { isFloat, positionText, pythonText } from "../yaml.ts";
import { elementToNode, keyText } from "./overrides.ts";
import {
  type Argument,
  mayRefer,
  type Part,
  parseArgument,
  parseText,
  type Reference,
  ReferenceMistake,
} from "./parse-reference.ts";

export interface ResolvedTree {
  tree: MapNode;
  warnings: Mistake[];
}

const longestText = 100_000;
const maxNodes = 100_000;
/** References to references to references. */
const longestChain = 200;

/**
 * Resolves all references of a tree. A reference to a missing value (`???`) is missing too.
 * @throws UserError listing every reference that cannot be resolved, with its location
 */
export function resolveTree(tree: MapNode, settings: Partial<ResolverSettings> = {}): ResolvedTree {
  const mistakes: Mistake[] = [];
  const resolution = new Resolution(tree, settings, mistakes);
  const resolved = resolution.deep({ node: tree, path: [] }) as MapNode;
  if (mistakes.length > 0) throw mistakesError(mistakes);
  return { tree: resolved, warnings: resolution.warnings };
}

/**
 * The resolved node of one key, or undefined if the tree does not have the key.
 * @throws UserError if a reference on the path cannot be resolved
 */
export function select(tree: MapNode, key: string, settings: Partial<ResolverSettings> = {}): Node | undefined {
  const resolution = new Resolution(tree, settings);
  try {
    const found = resolution.at(key.split("."));
    return found === undefined ? undefined : resolution.deep(found);
  } catch (error) {
    if (!(error instanceof ReferenceMistake)) throw error;
    const origin = nodeAt(tree, key.split("."))?.origin ?? tree.origin;
    throw mistakesError([{ where: positionText(origin), message: `${key} ${error.message}` }]);
  }
}

/** The node that a key's reference refers to, with its own references unresolved; undefined if it cannot be followed. */
export function dereference(tree: MapNode, path: readonly string[]): Node | undefined {
  try {
    const resolution = new Resolution(tree, {});
    const found = resolution.at(path);
    return found === undefined ? undefined : resolution.followed(found).node;
  } catch (error) {
    if (error instanceof ReferenceMistake) return undefined;
    throw error;
  }
}

/** A node and its path, where relative references start. */
interface Located {
  node: Node;
  path: readonly string[];
}

class Resolution {
  readonly warnings: Mistake[] = [];
  private readonly settings: ResolverSettings;
  /** By path, because the same node may appear in several places with different neighbors. */
  private readonly done = new Map<string, Located>();
  private readonly following = new Set<string>();
  private readonly inside = new Set<string>();
  private nodes = 0;

  constructor(
    private readonly root: MapNode,
    settings: Partial<ResolverSettings>,
    /** Collects mistakes; without it the first is thrown. */
    private readonly mistakes?: Mistake[],
  ) {
    this.settings = {
      environment: process.env,
      now: new Date(),
      choices: new Map(),
      configName: undefined,
      ...settings,
    };
  }

  /** A node with everything in it resolved. */
  deep(located: Located): Node {
    if (++this.nodes > maxNodes)
      throw mistakesError([
        {
          where: positionText(located.node.origin),
          message: `references expand to more than ${maxNodes} values`,
        },
      ]);
    const { node, path } = located;
    if (node.kind === "value") return this.value({ node, path });
    const key = keyOf(path);
    if (this.inside.has(key)) throw new ReferenceMistake(`refers to ${key}, a section that it is part of`);
    this.inside.add(key);
    try {
      if (node.kind === "list") {
        const items = node.items.map((item, index) => this.guarded(item, [...path, String(index)]));
        return { ...node, items };
      }
      const entries = node.entries.map((entry) => ({
        ...entry,
        node: this.guarded(entry.node, [...path, entry.name]),
      }));
      return { ...node, entries };
    } finally {
      this.inside.delete(key);
    }
  }

  private guarded(node: Node, path: readonly string[]): Node {
    try {
      return this.deep({ node, path });
    } catch (error) {
      if (this.mistakes === undefined || !(error instanceof ReferenceMistake) || this.following.size > 0) throw error;
      const mistake = { where: positionText(node.origin), message: `${keyOf(path)} ${error.message}` };
      // A section that a reference names is visited twice.
      const isKnown = this.mistakes.some(
        ({ where, message }) => where === mistake.where && message === mistake.message,
      );
      if (!isKnown) this.mistakes.push(mistake);
      return node;
    }
  }

  private value(located: { node: ValueNode; path: readonly string[] }): Node {
    const { node } = located;
    if (!mayRefer(node.value)) return node;
    const found = this.followed(located);
    const from = found.node.origin;
    const origin: Origin & { kind: "reference" } = { kind: "reference", text: node.value, at: node.origin };
    if (from !== node.origin) origin.from = from;
    return relocate(found.node.kind === "value" ? found.node : this.deep(found), origin);
  }

  /** The node that a reference refers to, with its path; references inside a section stay unresolved. */
  followed(located: Located): Located {
    const { node, path } = located;
    if (node.kind !== "value" || !mayRefer(node.value)) return located;
    const key = keyOf(path);
    const earlier = this.done.get(key);
    if (earlier !== undefined) return earlier;
    if (this.following.has(key)) {
      const chain = [...this.following, key].slice(-6).map((one) => oneLine(one, 60));
      throw new ReferenceMistake(`refers to itself: ${chain.join(" -> ")}`);
    }
    if (this.following.size > longestChain) {
      throw new ReferenceMistake(`starts a chain of more than ${longestChain} references`);
    }
    this.following.add(key);
    try {
      const found = this.evaluateText(parseText(node.value), { node, path });
      this.done.set(key, found);
      return found;
    } finally {
      this.following.delete(key);
    }
  }

  private evaluateText(parts: readonly Part[], located: Located): Located {
    const [only] = parts;
    if (parts.length === 1 && typeof only === "object") return this.evaluate(only, located);
    let text = "";
    for (const part of parts) {
      if (typeof part === "string") text += part;
      else {
        const { node } = this.evaluate(part, located);
        if (node.kind !== "value")
          throw new ReferenceMistake(
            `${oneLine(part.text)} is a ${node.kind === "map" ? "section" : "list"}, which cannot be part of text`,
          );
        if (node.value === "???") return { ...located, node };
        text += pythonText(node);
      }
      if (text.length > longestText) throw new ReferenceMistake(`becomes longer than ${longestText} characters`);
    }
    return { ...located, node: { kind: "value", origin: located.node.origin, value: text } };
  }

  private evaluate(reference: Reference, located: Located): Located {
    if (reference.kind === "key") {
      const names = reference.names.map((name) => (typeof name === "string" ? name : this.nameOf(name, located)));
      const found = this.lookUp(
        reference.up,
        names.flatMap((name) => name.split(".")),
        located,
      );
      if (found !== undefined) return this.followed(found);
      throw new ReferenceMistake(
        `${oneLine(reference.text)} refers to a key that does not exist${this.keyHelp(names)}`,
      );
    }
    const name = reference.name.map((part) => (typeof part === "string" ? part : this.nameOf(part, located))).join(".");
    const given = reference.arguments.map((argument) => this.evaluateArgument(argument, located));
    const missing = given.find((node) => node.kind === "value" && node.value === "???");
    if (missing !== undefined) return { ...located, node: missing };
    const { origin } = located.node;
    const key = keyOf(located.path);
    const node = callResolver(name, given, {
      origin,
      key,
      settings: this.settings,
      select: (wanted) => this.selected(wanted, located),
      evaluate: (argument) => this.evaluateArgument(argument, located),
      warn: (message) => this.warnings.push({ where: positionText(origin), message }),
    });
    return { ...located, node };
  }

  private nameOf(reference: Reference, located: Located): string {
    const { node } = this.evaluate(reference, located);
    if (node.kind === "value" && typeof node.value === "string") return node.value;
    throw new ReferenceMistake(`${oneLine(reference.text)} is used as a name, but its value is not text`);
  }

  private evaluateArgument(argument: Argument, located: Located): Node {
    const { origin } = located.node;
    switch (argument.type) {
      case "scalar":
        return elementToNode(argument.element, origin);
      case "parts": {
        const found = this.evaluateText(argument.parts, located);
        return found.node.kind === "value" ? found.node : this.deep(found);
      }
      case "list":
        return { kind: "list", origin, items: argument.items.map((item) => this.evaluateArgument(item, located)) };
      case "dict": {
        const nodes = new Map(
          argument.entries.map(([key, value]) => [keyText(key), this.evaluateArgument(value, located)]),
        );
        return { kind: "map", origin, entries: [...nodes].map(([name, node]) => ({ name, origin, node })) };
      }
    }
  }

  /** The value of a key for a resolver; null and missing differ from absent, which is undefined. */
  private selected(key: string, located: Located): Node | undefined {
    const up = key.length - key.replace(/^\.+/, "").length;
    const names = key
      .slice(up)
      .replace(/\[([^\]]*)\]/g, ".$1")
      .split(".")
      .filter((name) => name !== "");
    const found = this.lookUp(up, names, located);
    if (found === undefined || (found.node.kind === "value" && found.node.value === "???")) return undefined;
    return this.deep(found);
  }

  /** @param up number of leading dots; one means the section that contains the reference */
  private lookUp(up: number, names: readonly string[], { path }: Located): Located | undefined {
    if (up > path.length) throw new ReferenceMistake(`has more leading dots than sections around it`);
    return this.at([...(up === 0 ? [] : path.slice(0, path.length - up)), ...names]);
  }

  /** The node at a path. References on the path are followed, the node itself stays unresolved. */
  at(path: readonly string[]): Located | undefined {
    let located: Located = { node: this.root, path: [] };
    for (const name of path) {
      const section = this.followed(located);
      const child = childOf(section.node, name);
      if (child === undefined) return undefined;
      located = { node: child, path: [...section.path, name] };
    }
    return located;
  }

  private keyHelp(names: readonly string[]): string {
    const near = nearest(names.join("."), pathsIn(this.root));
    return near.length > 0 ? `; did you mean ${near.join(" or ")}?` : "";
  }
}

const keyOf = (path: readonly string[]) => path.join(".");

/** Sets the origin of every value in a referenced section to the reference that copied it. */
function relocate(node: Node, at: Origin & { kind: "reference" }): Node {
  const origin: Origin = { ...at, from: node.origin };
  if (node.kind === "list") return { ...node, origin, items: node.items.map((item) => relocate(item, at)) };
  if (node.kind === "map") {
    return {
      ...node,
      origin,
      entries: node.entries.map((entry) => ({ ...entry, origin, node: relocate(entry.node, at) })),
    };
  }
  return { ...node, origin: node.origin === at.at ? at : origin };
}

// Resolvers: the functions that references may call, e.g. `${oc.env:HOME}`. Their arguments are resolved.

/** The context of a resolver call. */
interface ResolverCall {
  origin: Origin;
  /** The key whose value is the reference. */
  key: string;
  /** The resolved value of another key, as written after `oc.select:`; undefined if it does not exist. */
  select(key: string): Node | undefined;
  evaluate(argument: Argument): Node;
  warn(message: string): void;
  settings: ResolverSettings;
}

export interface ResolverSettings {
  environment: Readonly<Record<string, string | undefined>>;
  now: Date;
  /** The option of each config group. */
  choices: ReadonlyMap<string, string | null>;
  configName: string | undefined;
}

type Resolver = (given: Node[], call: ResolverCall) => Node;

const resolvers: Readonly<Record<string, Resolver>> = {
  "oc.env": (given, { origin, settings }) => {
    const name = textOf(given, 0, "oc.env:NAME,default");
    const value = settings.environment[name];
    if (value !== undefined) return { kind: "value", origin, value };
    if (given[1] === undefined) {
      throw new ReferenceMistake(
        `the environment variable ${oneLine(name)} is not set; to give a default, write \${oc.env:${oneLine(name)},default}`,
      );
    }
    const fallback = scalar(given[1], "oc.env's default");
    return fallback.value === null ? fallback : { kind: "value", origin, value: pythonText(fallback) };
  },
  "oc.select": (given, { origin, select }) =>
    select(textOf(given, 0, "oc.select:key,default")) ?? given[1] ?? { kind: "value", origin, value: null },
  "oc.decode": (given, { origin, evaluate }) => {
    const [text] = given;
    if (text?.kind === "value" && text.value === null) return { kind: "value", origin, value: null };
    return evaluate(parseArgument(textOf(given, 0, "oc.decode:text")));
  },
  "oc.create": (given) => {
    const [value] = given;
    if (value === undefined || value.kind === "value")
      throw new ReferenceMistake("oc.create takes a section or a list");
    return value;
  },
  "oc.deprecated": (given, { key, select, warn }) => {
    const target = textOf(given, 0, "oc.deprecated:new.key");
    const found = select(target);
    if (found === undefined) throw new ReferenceMistake(`oc.deprecated names ${oneLine(target)}, which does not exist`);
    const message =
      given[1] === undefined ? "$OLD_KEY is deprecated; use $NEW_KEY" : textOf(given, 1, "oc.deprecated:key,message");
    warn(
      message.replaceAll(
        /\$(?:\{(\w+)\}|(\w+))/g,
        (whole, braced?: string, bare?: string) => ({ OLD_KEY: key, NEW_KEY: target })[braced ?? bare ?? ""] ?? whole,
      ),
    );
    return found;
  },
  "oc.dict.keys": (given, call) => {
    const { origin } = call;
    const items = sectionOf(given, call).map(({ name }): Node => ({ kind: "value", origin, value: name }));
    return { kind: "list", origin, items };
  },
  "oc.dict.values": (given, call) => ({
    kind: "list",
    origin: call.origin,
    items: sectionOf(given, call).map(({ node }) => node),
  }),
  /** From rLLM: the product of two integers. */
  mul: (given, { origin }) => {
    if (given.length !== 2) throw new ReferenceMistake("mul takes two numbers: mul:2,3");
    const [left, right] = given.map((node) => wholeNumber(node)) as [number, number];
    return { kind: "value", origin, value: left * right, text: String(left * right) };
  },
  now: (given, { origin, settings }) => ({
    kind: "value",
    origin,
    value: formatTime(given.length === 0 ? "%Y-%m-%d" : textOf(given, 0, "now:%Y-%m-%d"), settings.now),
  }),
  hydra: (given, { origin, settings: { choices, configName } }) => {
    const key = textOf(given, 0, "hydra:runtime.cwd");
    const choice = key.startsWith("runtime.choices.") ? choices.get(key.slice("runtime.choices.".length)) : undefined;
    const value = key === "runtime.cwd" ? process.cwd() : key === "job.config_name" ? configName : choice;
    if (value === undefined) {
      throw new ReferenceMistake(
        `\${hydra:${oneLine(key)}} is not supported; use runtime.cwd, runtime.choices.GROUP or job.config_name`,
      );
    }
    return { kind: "value", origin, value };
  },
};

/** @throws ReferenceMistake */
function callResolver(name: string, given: Node[], call: ResolverCall): Node {
  const known = Object.keys(resolvers);
  if (!Object.hasOwn(resolvers, name)) {
    const near = nearest(name, known);
    const help = near.length > 0 ? `did you mean ${near.join(" or ")}?` : `use one of ${known.join(", ")}`;
    throw new ReferenceMistake(`${oneLine(name)} is not a resolver; ${help}`);
  }
  return resolvers[name]!(given, call);
}

function textOf(given: readonly Node[], index: number, form: string): string {
  const node = given[index];
  if (node?.kind === "value" && typeof node.value === "string") return node.value;
  throw new ReferenceMistake(`\${${form}} needs text at that position`);
}

function scalar(node: Node, what: string): ValueNode {
  if (node.kind !== "value")
    throw new ReferenceMistake(`${what} cannot be a ${node.kind === "map" ? "section" : "list"}`);
  return node;
}

function sectionOf(given: readonly Node[], { select }: ResolverCall) {
  const key = textOf(given, 0, "oc.dict.keys:section");
  const section = select(key);
  if (section?.kind !== "map") throw new ReferenceMistake(`${oneLine(key)} is not a section`);
  return section.entries;
}

function wholeNumber(node: Node): number {
  const { value } = scalar(node, "mul's number");
  const number = typeof value === "string" && /^[+-]?\d+$/.test(value) ? Number(value) : value;
  if (typeof number === "number" && Number.isSafeInteger(number) && !isFloat(node as ValueNode)) return number;
  throw new ReferenceMistake(`mul takes whole numbers, not ${oneLine(String(value), 40)}`);
}

function formatTime(format: string, time: Date): string {
  const two = (value: number) => String(value).padStart(2, "0");
  const codes: Record<string, string> = {
    Y: String(time.getFullYear()),
    y: two(time.getFullYear() % 100),
    m: two(time.getMonth() + 1),
    d: two(time.getDate()),
    H: two(time.getHours()),
    M: two(time.getMinutes()),
    S: two(time.getSeconds()),
    f: String(time.getMilliseconds() * 1000).padStart(6, "0"),
    "%": "%",
  };
  return format.replace(/%(.?)/gs, (whole, code: string) => {
    const text = codes[code];
    if (text === undefined) throw new ReferenceMistake(`now supports %Y %y %m %d %H %M %S %f, not ${oneLine(whole)}`);
    return text;
  });
}
