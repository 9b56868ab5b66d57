/** Values of formats that write arguments as text without types, such as `<parameter=city>Paris</parameter>`. */
import { isObject } from "../../is-object.ts";
import type { ToolDefinition } from "../messages.ts";
import { callFromValue, type WrittenCall } from "./format.ts";
import { readPythonValue } from "./python-calls.ts";

/** A call whose arguments have the types that the tool's schema declares. */
export function callFromTexts(
  name: string,
  texts: readonly (readonly [key: string, text: string, isText?: boolean | undefined])[],
  tools: readonly ToolDefinition[],
): WrittenCall | string {
  if (name === "") return "it has no name";
  const properties = tools.find((tool) => tool.name === name)?.parameters?.properties;
  const values = texts.map(([key, text, isText]): [string, unknown] => [
    key,
    (isText ?? isString(isObject(properties) ? own(properties, key) : undefined)) ? text : typedValue(text),
  ]);
  const keys = new Set(values.map(([key]) => key));
  if (keys.size < values.length) return "it has a parameter twice";
  return callFromValue({ name, arguments: Object.fromEntries(values) }, ["arguments"]);
}

const own = (properties: Record<string, unknown>, key: string) =>
  Object.hasOwn(properties, key) ? properties[key] : undefined;

/** Whether the schema allows only strings. */
const isString = (schema: unknown): boolean => {
  if (!isObject(schema)) return false;
  const { type, enum: values } = schema;
  if (type === undefined && Array.isArray(values)) return values.every((value) => typeof value === "string");
  return type === "string" || (Array.isArray(type) && type.every((each) => each === "string"));
};

/** Templates write `True`, `False` and `None` where they print Python values. */
const pythonValues = new Map<string, unknown>([
  ["True", true],
  ["False", false],
  ["None", null],
]);

function typedValue(text: string): unknown {
  const trimmed = text.trim();
  if (pythonValues.has(trimmed)) return pythonValues.get(trimmed);
  try {
    return JSON.parse(trimmed);
  } catch {
    return /^[[{]/.test(trimmed) ? (readPythonValue(trimmed) ?? text) : text;
  }
}
