/** Resolvers: the functions that references may call, e.g. `${oc.env:HOME}`. Their arguments are resolved. */
import { nearest } from "../../nearest.ts";
import type { Node, ValueNode } from "../tree/node.ts";
import { type Origin, oneLine } from "../tree/origin.ts";
import { isFloat, pythonText } from "../yaml/scalars.ts";
import { type Argument, parseArgument, ReferenceMistake } from "./parse-reference.ts";

/** The context of a resolver call. */
export interface ResolverCall {
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
export function callResolver(name: string, given: Node[], call: ResolverCall): Node {
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
