/** Types of arguments that a model writes as text without types, such as `<parameter=city>Paris</parameter>`: the tool's schema says them. */
import { parseJson } from "../base/json.ts";
import { isObject } from "../base/values.ts";
import type { ToolDefinition } from "./messages.ts";
import { readPythonValue } from "./python-calls.ts";
import { callFromValue, type WrittenCall } from "./reply-format.ts";

/** A call whose arguments have the types that the tool's schema declares. */
export function callFromTexts(
  name: string,
  texts: readonly (readonly [key: string, text: string, isText?: boolean | undefined])[],
  tools: readonly ToolDefinition[],
): WrittenCall | string {
  if (name === "") return "it has no name";
  const parameters = tools.find((tool) => tool.name === name)?.parameters ?? {};
  const values = texts.map(([key, text, isText]): [string, unknown] => [
    key,
    isText === undefined ? typed(text, allowedFor(key, parameters)) : isText ? text : jsonOrText(text),
  ]);
  const keys = new Set(values.map(([key]) => key));
  if (keys.size < values.length) return "it has a parameter twice";
  return callFromValue({ name, arguments: Object.fromEntries(values) }, ["arguments"]);
}

/**
 * A string is text as it stands, also if it could be read as a number. Where other types are allowed too, the text is read as
 * JSON or as a Python value, and stays text if its type is not allowed.
 */
function typed(text: string, { types, values }: Allowed): unknown {
  if (types !== undefined && !types.has("string")) return jsonOrText(text);
  const isText = types?.size === 1;
  if (isText || values?.includes(text)) return text;
  const value = jsonOrText(text);
  if (types === undefined) return value;
  const fits = typesOf(value).some((type) => types.has(type)) && (values === undefined || values.includes(value));
  return fits && typeof value !== "string" ? value : text;
}

/** Templates write `True`, `False` and `None` where they print Python values. */
const pythonValues = new Map<string, unknown>([
  ["True", true],
  ["False", false],
  ["None", null],
]);

function jsonOrText(text: string): unknown {
  const trimmed = text.trim();
  if (pythonValues.has(trimmed)) return pythonValues.get(trimmed);
  try {
    return parseJson(trimmed);
  } catch {
    return /^[[{]/.test(trimmed) ? (readPythonValue(trimmed) ?? text) : text;
  }
}

// Which types a JSON Schema allows.

type Type = "string" | "number" | "integer" | "boolean" | "object" | "array" | "null";

interface Allowed {
  /** Undefined: every type. */
  types?: Set<Type> | undefined;
  /** The values of `const` or `enum`. */
  values?: readonly unknown[] | undefined;
}

const anything: Allowed = {};

/** Other names that clients use and that servers accept. */
const typeNames: ReadonlyMap<unknown, readonly Type[]> = new Map<unknown, readonly Type[]>([
  ...(["string", "boolean", "object", "array", "null"] as const).map((type) => [type, [type]] as const),
  ["number", ["number", "integer"]],
  ["integer", ["integer"]],
  ...["str", "text", "enum"].map((name) => [name, ["string"]] as const),
  ["int", ["integer"]],
  ["float", ["number", "integer"]],
  ["bool", ["boolean"]],
  ["dict", ["object"]],
  ["list", ["array"]],
]);

function typesOf(value: unknown): Type[] {
  if (value === null) return ["null"];
  if (Array.isArray(value)) return ["array"];
  if (typeof value === "number") return Number.isInteger(value) ? ["integer", "number"] : ["number"];
  return [typeof value as Type];
}

/** A tool's schema. `left` bounds the work, since a schema may refer to itself: what is beyond it allows everything. */
interface Root {
  schema: unknown;
  left: number;
}

const mostSchemas = 1000;

/** @param parameters the schema of all arguments */
function allowedFor(key: string, parameters: Readonly<Record<string, unknown>>): Allowed {
  const root: Root = { schema: parameters, left: mostSchemas };
  return propertySchemas(key, parameters, root)
    .map((schema) => allowed(schema, root))
    .reduce(both, anything);
}

/** The schemas that a property must match. */
function propertySchemas(key: string, schema: unknown, root: Root): unknown[] {
  if (!isObject(schema) || root.left-- < 0) return [];
  const { properties, patternProperties, additionalProperties, $ref, allOf, anyOf, oneOf } = schema;
  const found: unknown[] = [];
  if (isObject(properties) && Object.hasOwn(properties, key)) found.push(properties[key]);
  for (const [pattern, inner] of Object.entries(isObject(patternProperties) ? patternProperties : {})) {
    if (matches(pattern, key)) found.push(inner);
  }
  const inner = (each: unknown) => propertySchemas(key, each, root);
  if (typeof $ref === "string") found.push(...inner(resolve($ref, root)));
  for (const each of Array.isArray(allOf) ? allOf : []) found.push(...inner(each));
  // Of alternatives, those that know the property count.
  for (const list of [anyOf, oneOf]) {
    const known = (Array.isArray(list) ? list : []).flatMap(inner);
    if (known.length > 0) found.push({ anyOf: known });
  }
  return found.length === 0 && isObject(additionalProperties) ? [additionalProperties] : found;
}

/** Only literal patterns and prefixes, since a client's pattern may take exponential time. */
function matches(pattern: string, key: string): boolean {
  if (pattern === "" || pattern === ".*" || pattern === "^.*$") return true;
  const literal = /^\^([\w-]+)(\$?)$/.exec(pattern);
  return literal !== null && (literal[2] === "$" ? key === literal[1] : key.startsWith(literal[1] ?? ""));
}

function allowed(schema: unknown, root: Root): Allowed {
  if (!isObject(schema) || root.left-- < 0) return anything;
  const { type, const: constant, enum: listed, anyOf, oneOf, allOf, $ref, nullable } = schema;
  const inner = (each: unknown) => allowed(each, root);
  const named = [type].flat().filter((each) => each !== undefined);
  let found: Allowed =
    named.length === 0 ? anything : { types: new Set(named.flatMap((each) => typeNames.get(each) ?? [])) };
  if (found.types?.size === 0) found = anything;
  // As OpenAPI writes it.
  if (nullable === true) found.types?.add("null");
  const values = Object.hasOwn(schema, "const") ? [constant] : Array.isArray(listed) ? listed : undefined;
  if (values !== undefined && values.length > 0)
    found = both(found, { types: new Set(values.flatMap(typesOf)), values });
  if (typeof $ref === "string") found = both(found, inner(resolve($ref, root)));
  for (const each of Array.isArray(allOf) ? allOf : []) found = both(found, inner(each));
  for (const list of [anyOf, oneOf]) {
    if (Array.isArray(list) && list.length > 0) found = both(found, list.map(inner).reduce(oneOfBoth));
  }
  return found;
}

/** What both schemas allow. Schemas that contradict each other allow everything. */
function both(left: Allowed, right: Allowed): Allowed {
  if (left.types === undefined || right.types === undefined) {
    return { types: left.types ?? right.types, values: left.values ?? right.values };
  }
  const common = new Set([...left.types].filter((type) => right.types?.has(type)));
  return common.size === 0 ? anything : { types: common, values: left.values ?? right.values };
}

function oneOfBoth(left: Allowed, right: Allowed): Allowed {
  if (left.types === undefined || right.types === undefined) return anything;
  const values = left.values && right.values ? [...left.values, ...right.values] : undefined;
  return { types: new Set([...left.types, ...right.types]), values };
}

/** A reference inside the tool's schema. Others are unknown and allow everything. */
function resolve(reference: string, root: Root): unknown {
  if (!reference.startsWith("#")) return undefined;
  const path = reference.slice(1).split("/").slice(1).map(unescapePointer);
  return path.reduce<unknown>((at, key) => {
    if (Array.isArray(at)) return at[Number(key)];
    return isObject(at) && Object.hasOwn(at, key) ? at[key] : undefined;
  }, root.schema);
}

function unescapePointer(part: string): string {
  try {
    return decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~");
  } catch {
    return part;
  }
}
