/** Reads the parameters of a request: each is typed, and none is ignored silently. */
import { isObject } from "../../is-object.ts";
import type { Notices } from "../calls/model-call.ts";
import { GatewayError } from "./gateway-error.ts";

export type Body = Record<string, unknown>;

/**
 * What happens to a parameter:
 * - `used`
 * - `ignored`: it does not change what is sampled; the reason is logged once, and each use is counted
 * - `refused`: without it the request would mean something else. The values in `unless` request nothing and are accepted.
 */
export type Rule = "used" | { ignored: string } | { refused: string; unless?: readonly unknown[] };
export type Rules = Readonly<Record<string, Rule>>;

/** @param names separated by spaces */
export const used = (names: string): Record<string, Rule> =>
  Object.fromEntries(names.split(" ").map((name) => [name, "used"]));

/** The reason for ignoring a parameter. */
export const noEffect = "it does not change what is sampled";

/**
 * A parameter that is null counts as missing.
 * @throws GatewayError naming a parameter that is unknown or refused
 */
export function checkParameters(body: Body, rules: Rules, notices: Notices): void {
  for (const [name, value] of Object.entries(body)) {
    if (value === null || value === undefined) continue;
    const rule = Object.hasOwn(rules, name) ? rules[name] : undefined;
    if (rule === "used") continue;
    if (rule === undefined) throw badParameter(name, `unknown parameter ${JSON.stringify(name)}`);
    if ("ignored" in rule) {
      notices.add(`ignored_parameter/${name}`, `the parameter ${name} is ignored: ${rule.ignored}`);
    } else if (!rule.unless?.some((neutral) => JSON.stringify(neutral) === JSON.stringify(value))) {
      throw badParameter(name, `${name} is not supported: ${rule.refused}`);
    }
  }
}

export const badParameter = (name: string, message: string) =>
  new GatewayError("invalid_request", message, { parameter: name });

/** Makes a reader of optional parameters. */
const reader =
  <Value>(what: string, isValid: (value: unknown) => value is Value) =>
  (body: Body, name: string): Value | undefined => {
    const value = body[name] ?? undefined;
    if (value === undefined || isValid(value)) return value;
    throw mustBe(name, what, value);
  };

const mustBe = (name: string, what: string, value: unknown) =>
  badParameter(name, `${name} must be ${what}; it is ${JSON.stringify(value)?.slice(0, 200)}`);

const isString = (value: unknown) => typeof value === "string";
const isInteger = (value: unknown): value is number => Number.isInteger(value);

export const readBoolean = reader("true or false", (value) => typeof value === "boolean");
export const readString = reader("a string", isString);
export const readObject = reader("an object", isObject);
export const readList = reader("a list", (value): value is unknown[] => Array.isArray(value));
export const readIntegers = reader(
  "a list of integers",
  (value): value is number[] => Array.isArray(value) && value.every(isInteger),
);
const readTexts = reader(
  "a string or a list of strings",
  (value): value is string | string[] => isString(value) || (Array.isArray(value) && value.every(isString)),
);

/** One string or several. */
export function readStrings(body: Body, name: string): string[] | undefined {
  const value = readTexts(body, name);
  return typeof value === "string" ? [value] : value;
}

interface Range {
  min?: number;
  max?: number;
  integer?: boolean;
}

export function readNumber(body: Body, name: string, { min, max, integer = false }: Range = {}): number | undefined {
  const value = body[name] ?? undefined;
  if (value === undefined) return undefined;
  const isInRange = typeof value === "number" && value >= (min ?? -Infinity) && value <= (max ?? Infinity);
  if (isInRange && (!integer || isInteger(value))) return value;
  const range = `${min === undefined ? "" : ` >= ${min}`}${max === undefined ? "" : ` <= ${max}`}`;
  throw mustBe(name, `${integer ? "an integer" : "a number"}${range}`, value);
}

const longestName = 512;

/** The model's name, which is stored with every call. "" if missing. */
export function readModel(body: Body): string {
  const model = readString(body, "model") ?? "";
  if (model.length <= longestName) return model;
  throw badParameter("model", `model is longer than ${longestName} characters`);
}
