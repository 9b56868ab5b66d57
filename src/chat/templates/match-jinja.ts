/**
 * Rewrites parsed templates where the template library differs from Python: its `strip`, `lstrip` and `rstrip` ignore the
 * characters argument, these methods and the `trim` filter use another definition of white space, and its `string` filter writes
 * `true` for `True`.
 */

interface Node {
  type?: string;
  value?: unknown;
  callee?: Node;
  object?: Node;
  property?: Node;
  computed?: boolean;
  args?: Node[];
  filter?: Node;
  operand?: Node;
}

const methods = ["strip", "lstrip", "rstrip"] as const;

/** Functions that a rewritten template calls; pass them as variables when rendering. */
export const pythonFunctions: Readonly<Record<string, (text: unknown, characters?: unknown) => string>> = {
  python_strip: stripMethod("strip"),
  python_lstrip: stripMethod("lstrip"),
  python_rstrip: stripMethod("rstrip"),
  // Like Python's filter, it accepts any value.
  python_trim: (value, characters) => strip(asText(value), "strip", characters),
  python_string: (value) => asText(value),
};

/** @param parsed changed in place */
export function matchPython(parsed: unknown): void {
  if (typeof parsed !== "object" || parsed === null) return;
  const node = parsed as Node;
  const { type, object, property, computed } = node.callee ?? {};
  if (node.type === "CallExpression" && type === "MemberExpression" && !computed && object) {
    if (methods.some((name) => name === property?.value)) {
      node.args = [object, ...(node.args ?? [])];
      node.callee = identifier(`python_${property?.value}`);
    }
  } else if (node.type === "FilterExpression" && node.operand) {
    const name = isTrim(node.filter) ? "python_trim" : node.filter?.value === "string" ? "python_string" : undefined;
    if (name !== undefined) {
      const args = [node.operand, ...(node.filter?.args ?? [])];
      delete node.filter;
      delete node.operand;
      Object.assign(node, { type: "CallExpression", callee: identifier(name), args });
    }
  }
  for (const child of Object.values(node)) matchPython(child);
}

const identifier = (name: string): Node => ({ type: "Identifier", value: name });

const isTrim = (filter: Node | undefined) =>
  (filter?.type === "Identifier" && filter.value === "trim") ||
  (filter?.type === "CallExpression" && filter.callee?.value === "trim");

function stripMethod(side: (typeof methods)[number]) {
  return (text: unknown, characters?: unknown) => {
    if (typeof text !== "string") throw new Error(`${side} of a value that is not a string`);
    return strip(text, side, characters);
  };
}

/** White space of Python's `str.isspace`. */
const pythonSpace = new Set(
  "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000",
);

function strip(text: string, side: (typeof methods)[number], characters: unknown): string {
  const gone = typeof characters === "string" ? new Set(characters) : pythonSpace;
  const letters = [...text];
  const keep = (letter: string) => !gone.has(letter);
  const start = side === "rstrip" ? 0 : letters.findIndex(keep);
  const end = side === "lstrip" ? letters.length : letters.findLastIndex(keep) + 1;
  return start < 0 ? "" : letters.slice(start, end).join("");
}

/** Python's `str`, for the values of tool calls. */
function asText(value: unknown): string {
  return value === undefined ? "" : typeof value === "string" ? value : asRepresentation(value);
}

function asRepresentation(value: unknown): string {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "string") return quoted(value);
  if (Array.isArray(value)) return `[${value.map(asRepresentation).join(", ")}]`;
  const entries = value instanceof Map ? [...value] : typeof value === "object" ? Object.entries(value) : undefined;
  if (entries === undefined) return String(value);
  return `{${entries.map(([key, part]) => `${asRepresentation(key)}: ${asRepresentation(part)}`).join(", ")}}`;
}

/** With the quotation mark that needs no escape, if there is one. */
function quoted(text: string): string {
  const mark = text.includes("'") && !text.includes('"') ? '"' : "'";
  const escaped = text.replaceAll("\\", "\\\\").replaceAll("\n", "\\n").replaceAll("\r", "\\r").replaceAll("\t", "\\t");
  return `${mark}${mark === "'" ? escaped.replaceAll("'", "\\'") : escaped}${mark}`;
}
