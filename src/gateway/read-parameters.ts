/** Reads a request's parameters: typed, and none overlooked. */
import { GatewayError } from "./gateway-error.ts";
import type { Notices } from "./notices.ts";

export type Body = Record<string, unknown>;

/**
 * What is done with a parameter:
 * - `used`
 * - `ignored`: it has no bearing on what is sampled, or none can be given to it; why is told once and counted
 * - `refused`: going on without it would answer another question than was asked. `unless` lists values that ask for
 *   nothing.
 */
export type Rule = "used" | { ignored: string } | { refused: string; unless?: readonly unknown[] };

/**
 * A parameter that is null was not given.
 * @throws GatewayError naming a parameter that is unknown or refused
 */
export function checkParameters(body: Body, rules: Readonly<Record<string, Rule>>, notices: Notices): void {
  for (const [name, value] of Object.entries(body)) {
    if (value === null || value === undefined) continue;
    const rule = Object.hasOwn(rules, name) ? rules[name]! : undefined;
    if (rule === "used") continue;
    if (rule === undefined) throw badParameter(name, `unknown parameter ${JSON.stringify(name)}`);
    if ("ignored" in rule)
      notices.add(`ignored_parameter/${name}`, `the parameter ${name} is ignored: ${rule.ignored}`);
    else if (!rule.unless?.some((neutral) => same(neutral, value))) {
      throw badParameter(name, `${name} is not supported: ${rule.refused}`);
    }
  }
}

export const badParameter = (name: string, message: string) =>
  new GatewayError("invalid_request", message, { parameter: name });

const same = (left: unknown, right: unknown) => left === right || JSON.stringify(left) === JSON.stringify(right);

function mustBe(name: string, what: string, value: unknown): never {
  throw badParameter(name, `${name} must be ${what}; it is ${JSON.stringify(value)?.slice(0, 200)}`);
}

export function readNumber(
  body: Body,
  name: string,
  { min = Number.NEGATIVE_INFINITY, max = Number.POSITIVE_INFINITY, integer = false } = {},
): number | undefined {
  const value = body[name] ?? undefined;
  if (value === undefined) return undefined;
  if (typeof value === "number" && value >= min && value <= max && (!integer || Number.isInteger(value))) return value;
  const range = `${min === Number.NEGATIVE_INFINITY ? "" : ` >= ${min}`}${max === Number.POSITIVE_INFINITY ? "" : ` <= ${max}`}`;
  return mustBe(name, `${integer ? "an integer" : "a number"}${range}`, value);
}

export function readBoolean(body: Body, name: string): boolean | undefined {
  const value = body[name] ?? undefined;
  return value === undefined || typeof value === "boolean" ? value : mustBe(name, "true or false", value);
}

export function readString(body: Body, name: string): string | undefined {
  const value = body[name] ?? undefined;
  return value === undefined || typeof value === "string" ? value : mustBe(name, "a string", value);
}

const longestName = 512;

/** A name that is kept with every call. */
export function readName(body: Body, name: string): string | undefined {
  const value = readString(body, name);
  if (value === undefined || value.length <= longestName) return value;
  throw badParameter(name, `${name} is longer than ${longestName} characters`);
}

/** One string or several. */
export function readStrings(body: Body, name: string): string[] | undefined {
  const value = body[name] ?? undefined;
  if (value === undefined) return undefined;
  const list: unknown[] = Array.isArray(value) ? value : [value];
  return list.every((entry) => typeof entry === "string") ? list : mustBe(name, "a string or a list of strings", value);
}

export function readIntegers(body: Body, name: string): number[] | undefined {
  const value = body[name] ?? undefined;
  if (value === undefined) return undefined;
  return Array.isArray(value) && value.every(Number.isInteger) ? value : mustBe(name, "a list of integers", value);
}

export function readObject(body: Body, name: string): Body | undefined {
  const value = body[name] ?? undefined;
  return value === undefined || isObject(value) ? value : mustBe(name, "an object", value);
}

export function readList(body: Body, name: string): unknown[] | undefined {
  const value = body[name] ?? undefined;
  return value === undefined || Array.isArray(value) ? value : mustBe(name, "a list", value);
}

export const isObject = (value: unknown): value is Body =>
  typeof value === "object" && value !== null && !Array.isArray(value);
