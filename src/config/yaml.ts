/**
 * YAML as OmegaConf reads it, to nodes with positions, and a composed configuration as YAML. Plain scalars are those of YAML 1.1 with
 * floats such as `1e-5`: Hydra's files rely on these rules, so `off` is false and `1:30` is 90.
 */
import { closeSync, openSync, readSync, statSync } from "node:fs";
import {
  Document,
  isAlias,
  isMap,
  isScalar,
  isSeq,
  LineCounter,
  parseAllDocuments,
  visit,
  type Node as YamlNode,
} from "yaml";
import { type Entry, type Mistake, type Node, type Origin, oneLine, originText, type ValueNode } from "./tree.ts";

const booleans = new Map(
  ["yes", "true", "on"]
    .map((name): [string, boolean] => [name, true])
    .concat(["no", "false", "off"].map((name): [string, boolean] => [name, false])),
);
const booleanCase = /^(?:[a-z]+|[A-Z][a-z]*|[A-Z]+)$/;
const integer = /^[-+]?(?:0b[01_]+|0x[\da-fA-F_]+|0[0-7_]+|0|[1-9][\d_]*(?::[0-5]?\d)*)$/;
const float = new RegExp(
  `^(?:${[
    /[-+]?\d[\d_]*\.[\d_]*(?:[eE][-+]?\d+)?/,
    /[-+]?\d+(?:_\d+)*[eE][-+]?\d+/,
    /\.\d[\d_]*(?:[eE][-+]\d+)?/,
    /[-+]?\d[\d_]*(?::[0-5]?\d)+\.[\d_]*/,
    /[-+]?\.(?:inf|Inf|INF)/,
    /\.(?:nan|NaN|NAN)/,
  ]
    .map(({ source }) => source)
    .join("|")})$`,
);

/** A plain (unquoted) scalar's value. Integers beyond 2^53 lose digits, as JavaScript's numbers do. */
function readScalar(text: string): string | number | boolean | null {
  if (/^(?:|~|null|Null|NULL)$/.test(text)) return null;
  if (booleanCase.test(text)) {
    const boolean = booleans.get(text.toLowerCase());
    if (boolean !== undefined) return boolean;
  }
  if (integer.test(text)) return readInteger(text.replaceAll("_", ""));
  if (float.test(text)) return readFloat(text.replaceAll("_", "").toLowerCase());
  return text;
}

function readInteger(text: string): number {
  const sign = text.startsWith("-") ? -1 : 1;
  const digits = text.replace(/^[-+]/, "");
  const octal = /^0\d/.test(digits);
  const value = digits.includes(":") ? sexagesimal(digits) : octal ? Number.parseInt(digits, 8) : Number(digits);
  return value === 0 ? 0 : sign * value;
}

function readFloat(text: string): number {
  const sign = text.startsWith("-") ? -1 : 1;
  const digits = text.replace(/^[-+]/, "");
  if (digits === ".inf") return sign * Number.POSITIVE_INFINITY;
  if (digits === ".nan") return Number.NaN;
  return sign * (digits.includes(":") ? sexagesimal(digits) : Number(digits));
}

const sexagesimal = (digits: string) => digits.split(":").reduce((sum, part) => sum * 60 + Number(part), 0);

/** Whether a number was written as a float: JavaScript itself does not distinguish 1.0 from 1. */
export function isFloat({ value, text }: ValueNode): boolean {
  if (typeof value !== "number") return false;
  if (!Number.isInteger(value)) return true;
  return text !== undefined && isFloatText(text);
}

export const isFloatText = (text: string) => /[.eE]/.test(text) && !/^[-+]?0x/.test(text);

/** A value as Python's `str()` spells it, which is what Hydra puts into text: `True`, `None`, `1e-05`, `1.0`. */
export function pythonText(node: ValueNode): string {
  const { value } = node;
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "number") return isFloat(node) ? pythonFloat(value) : String(BigInt(value));
  return String(value);
}

/** A float in the spelling that Python's `repr()` gives it. */
export function pythonFloat(value: number): string {
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  if (value === 0) return Object.is(value, -0) ? "-0.0" : "0.0";
  const [mantissa, exponentText] = value.toExponential().split("e") as [string, string];
  const exponent = Number(exponentText);
  if (exponent >= -4 && exponent < 16) {
    const digits = String(value).includes("e")
      ? value.toFixed(mantissa.replace(/\D/g, "").length - 1 - exponent)
      : String(value);
    return digits.includes(".") ? digits : `${digits}.0`;
  }
  return `${mantissa}e${exponent < 0 ? "-" : "+"}${String(Math.abs(exponent)).padStart(2, "0")}`;
}

// Parses YAML text. Anchors, aliases and merge keys (`<<`) are resolved here.

/** A larger file is not a configuration; its name was probably given by mistake. */
const maxFileSize = 1_000_000;
/** Limits for aliases of aliases, which grow exponentially; no configuration has this many values or levels. */
const maxNodes = 100_000;
const maxDepth = 100;

export interface ReadYaml {
  /** Undefined if the text is empty. */
  node: Node | undefined;
  mistakes: Mistake[];
}

export function readYamlFile(file: string): ReadYaml {
  const read = readTextFile(file);
  if (read.mistake !== undefined) return { node: undefined, mistakes: [read.mistake] };
  return readYaml(read.text, (line, column) => ({ kind: "file", file, line, column }));
}

/** Reads the text of a configuration file, or returns why it cannot be read. */
export function readTextFile(file: string): { text: string; mistake?: undefined } | { mistake: Mistake } {
  const wrong = (message: string) => ({ mistake: { where: oneLine(file), message } });
  try {
    const { size } = statSync(file);
    if (size > maxFileSize)
      return wrong(`has ${size} bytes; a configuration file may have at most ${maxFileSize} bytes`);
    const bytes = readStart(file, maxFileSize + 1);
    if (bytes.length > maxFileSize)
      return wrong(`has more than ${maxFileSize} bytes, the most of a configuration file`);
    return { text: new TextDecoder("utf-8", { fatal: true }).decode(bytes) };
  } catch (error) {
    return wrong(readFailure(error));
  }
}

/** A device has no end, and a pipe has no size. */
function readStart(file: string, most: number): Buffer {
  const handle = openSync(file, "r");
  try {
    const bytes = Buffer.allocUnsafe(most);
    let size = 0;
    for (let read = -1; read !== 0 && size < most; size += read)
      read = readSync(handle, bytes, size, most - size, null);
    return bytes.subarray(0, size);
  } finally {
    closeSync(handle);
  }
}

function readFailure(error: unknown): string {
  const code = (error as NodeJS.ErrnoException).code;
  if (code === "ENOENT") return "file not found";
  if (code === "EISDIR") return "is a folder, not a YAML file";
  if (code === "ERR_ENCODING_INVALID_ENCODED_DATA") return "is not UTF-8 text";
  return `cannot be read: ${oneLine(String((error as Error).message))}`;
}

type Locate = (line: number, column: number) => Origin;

/** @param locate creates an origin from a line and a column, both counted from 1 */
export function readYaml(text: string, locate: Locate): ReadYaml {
  const lines = new LineCounter();
  const mistakes: Mistake[] = [];
  const at = (offset: number): Origin => {
    const { line, col } = lines.linePos(offset);
    return locate(Math.max(1, line), Math.max(1, col));
  };
  const complain = (offset: number, message: string) => mistakes.push({ where: positionText(at(offset)), message });

  const reader: Reader = {
    at,
    complain,
    complainAtMark: (mark, offset, message) => complain(Math.max(0, text.lastIndexOf(mark, offset)), message),
    anchors: new Map(),
    nodes: 0,
  };
  let node: Node | undefined;
  try {
    const contents = parseOne(text, lines, complain);
    if (mistakes.length === 0 && contents) node = toNode(contents, reader, 0);
  } catch (error) {
    // The parser and the reader recurse, so nesting thousands of levels deep overflows the stack.
    complain(0, `cannot be parsed as YAML: ${oneLine((error as Error).message)}`);
  }
  return { node: mistakes.length > 0 ? undefined : node, mistakes };
}

function parseOne(text: string, lineCounter: LineCounter, complain: Reader["complain"]): YamlNode | null | undefined {
  const options = { lineCounter, prettyErrors: false, logLevel: "silent", schema: "failsafe" } as const;
  const parsed = parseAllDocuments(text, options);
  const documents: Document.Parsed[] = "empty" in parsed ? [] : parsed;
  for (const { errors, warnings } of documents) {
    for (const { code, pos, message } of [...errors, ...warnings]) complain(pos[0], syntaxMessage(code, message));
  }
  const second = documents[1];
  if (second !== undefined)
    complain(second.range[0], "a second document (---) starts here; a file may contain only one");
  return documents[0]?.contents;
}

/** `file:line:column`, or the flag verbatim. Of a synchronized key, those of the key that was set. */
export function positionText(origin: Origin): string {
  if (origin.kind === "reference") return positionText(origin.at);
  if (origin.kind === "synced") return positionText(origin.of);
  if (origin.kind === "file") {
    return `${oneLine(origin.file)}:${origin.line}:${origin.column}`;
  }
  return origin.kind === "override" || origin.kind === "flag" ? oneLine(origin.text) : originText(origin);
}

function syntaxMessage(code: string, message: string): string {
  if (code === "DUPLICATE_KEY") return "this key appears twice in its section";
  if (code === "TAG_RESOLVE_FAILED") return tagMessage;
  if (code === "TAB_AS_INDENT") return "this line is indented with a tab; YAML allows only spaces";
  return oneLine(message);
}

const tagMessage = "tags (!...) are not supported; put text in quotes instead";

interface Reader {
  at(offset: number): Origin;
  complain(offset: number, message: string): void;
  /** Complains at the last occurrence of `mark` before `offset`. */
  complainAtMark(mark: string, offset: number, message: string): void;
  anchors: Map<string, { node: Node; size: number }>;
  /** Nodes read so far, including those repeated by aliases. */
  nodes: number;
}

function toNode(yaml: YamlNode, reader: Reader, depth: number): Node {
  const before = reader.nodes;
  const node = withoutAnchor(yaml, reader, depth);
  const { anchor } = yaml as { anchor?: string };
  if (anchor !== undefined) reader.anchors.set(anchor, { node, size: reader.nodes - before });
  return node;
}

function withoutAnchor(yaml: YamlNode, reader: Reader, depth: number): Node {
  const { at, complain } = reader;
  const offset = yaml.range?.[0] ?? 0;
  const origin = at(offset);
  reader.nodes++;
  if (depth > maxDepth) {
    complain(offset, `is nested deeper than ${maxDepth} levels`);
    return empty(origin);
  }
  if (isAlias(yaml)) return aliased(yaml.source, offset, reader);
  refuseTag(yaml, offset, reader);
  if (isMap(yaml)) {
    const entries: Entry[] = [];
    const merged: Entry[] = [];
    for (const { key, value } of yaml.items) {
      const keyNode = key as YamlNode;
      const keyOffset = keyNode.range?.[0] ?? offset;
      const keyOrigin = at(keyOffset);
      if (isScalar(keyNode)) refuseTag(keyNode, keyOffset, reader);
      else complain(keyOffset, "a key must be a plain name");
      const name = isScalar(keyNode) ? (keyNode.source ?? String(keyNode.value)) : "";
      const node = value === null ? empty(keyOrigin) : toNode(value as YamlNode, reader, depth + 1);
      if (name === "<<" && isScalar(keyNode) && keyNode.type === "PLAIN") {
        merged.push(...mergedEntries(node, keyOffset, reader));
      }
      // The position of a value is its key's, because that is where a person looks for it.
      else entries.push({ name, origin: keyOrigin, node: { ...node, origin: keyOrigin } });
    }
    return { kind: "map", origin, entries: firstOfEach([...entries, ...merged]) };
  }
  if (isSeq(yaml)) {
    const items = yaml.items.map((item) =>
      item === null ? empty(origin) : toNode(item as YamlNode, reader, depth + 1),
    );
    return { kind: "list", origin, items };
  }
  if (!isScalar(yaml)) return empty(origin);
  const text = yaml.source ?? "";
  return yaml.type === "PLAIN" ? plainScalar(text, origin) : { kind: "value", origin, value: text };
}

function plainScalar(text: string, origin: Origin): Node {
  const value = readScalar(text);
  return typeof value === "string" || value === null
    ? { kind: "value", origin, value }
    : { kind: "value", origin, value, text };
}

function aliased(name: string, offset: number, reader: Reader): Node {
  const anchor = reader.anchors.get(name);
  if (anchor === undefined) {
    reader.complain(offset, `the anchor &${oneLine(name)} is not defined before this line`);
    return empty(reader.at(offset));
  }
  reader.nodes += anchor.size;
  if (reader.nodes > maxNodes) {
    reader.complain(offset, `aliases expand to more than ${maxNodes} values`);
    reader.nodes = 0;
  }
  return anchor.node;
}

/** The entries merged by `<<: *anchor` or `<<: [*first, *second]`; the section's own keys win, then earlier anchors. */
function mergedEntries(node: Node, offset: number, reader: Reader): Entry[] {
  if (node.kind === "map") return node.entries;
  if (node.kind === "list" && node.items.every(({ kind }) => kind === "map")) {
    return node.items.flatMap((item) => (item.kind === "map" ? item.entries : []));
  }
  reader.complain(offset, "the value of << must be a section or a list of sections");
  return [];
}

function firstOfEach(entries: readonly Entry[]): Entry[] {
  const seen = new Set<string>();
  return entries.filter(({ name }) => !seen.has(name) && seen.add(name));
}

const empty = (origin: Origin): Node => ({ kind: "value", origin, value: null });

function refuseTag(yaml: YamlNode, offset: number, { complainAtMark }: Reader): void {
  const { tag } = yaml as { tag?: string };
  if (tag) complainAtMark(tag.startsWith("tag:yaml.org") ? "!!" : "!", offset, tagMessage);
}

// Writes a composed configuration as YAML that reads back as the same configuration.

/** Escapes text so that it reads back unchanged. */
export function escapeReferences(text: string): string {
  return text.replaceAll(/(\\*)\$\{/g, "$1$1\\${");
}

/**
 * Every key on its own line with its origin as a comment: `learning_rate: 0.001 # train.yaml:3:5`.
 * @param origins by key; a key without one gets no comment
 * @param options `unresolved`: the tree still contains references, which are kept
 */
export function toYaml(
  tree: object,
  origins: ReadonlyMap<string, Origin> = new Map(),
  { unresolved = false }: { unresolved?: boolean } = {},
): string {
  const document = new Document(tree);
  visit(document, {
    Scalar(_, node) {
      if (typeof node.value !== "string") return;
      // `off` and `1:30` are read as text only in quotes.
      if (readScalar(node.value) !== node.value) node.type = "QUOTE_DOUBLE";
      if (!unresolved) node.value = escapeReferences(node.value);
    },
    Seq(_, node) {
      node.flow = true;
    },
    Map(_, node) {
      node.flow = node.items.length === 0;
    },
  });
  for (const [key, origin] of origins) {
    const node = document.getIn(key.split("."), true) as YamlNode | undefined;
    if (node !== undefined) node.comment = ` ${originText(origin)}`;
  }
  // Text is quoted and never folded, so each key stays on one line with its comment.
  return document.toString({ lineWidth: 0, flowCollectionPadding: false, blockQuote: false });
}
