/** YAML text to nodes with positions. Knows nothing of the schema. */
import { readFileSync, statSync } from "node:fs";
import {
  type Document,
  isAlias,
  isMap,
  isScalar,
  isSeq,
  LineCounter,
  parseAllDocuments,
  type Node as YamlNode,
} from "yaml";
import type { Mistake, Node } from "./node.ts";
import { type Origin, oneLine } from "./origin.ts";

/** More than this is no configuration but a file named by mistake. */
const largestFile = 1_000_000;

export interface ReadYaml {
  /** Undefined when the text holds nothing. */
  node: Node | undefined;
  mistakes: Mistake[];
}

/** @param kind whose file this is, for the origins */
export function readYamlFile(file: string, kind: "file" | "backend" = "file"): ReadYaml {
  const wrong = (message: string): ReadYaml => ({ node: undefined, mistakes: [{ where: oneLine(file), message }] });
  let text: string;
  try {
    const { size } = statSync(file);
    if (size > largestFile) return wrong(`has ${size} bytes; a configuration file is smaller than ${largestFile}`);
    text = new TextDecoder("utf-8", { fatal: true }).decode(readFileSync(file));
  } catch (error) {
    return wrong(readFailure(error));
  }
  return readYaml(text, (line, column) => ({ kind, file, line, column }));
}

function readFailure(error: unknown): string {
  const code = (error as NodeJS.ErrnoException).code;
  if (code === "ENOENT") return "there is no such file";
  if (code === "EISDIR") return "is a folder, not a YAML file";
  if (code === "ERR_ENCODING_INVALID_ENCODED_DATA") return "is not UTF-8 text";
  return `cannot be read: ${oneLine(String((error as Error).message))}`;
}

type Locate = (line: number, column: number) => Origin;

/** @param locate makes an origin of a line and a column, both counted from 1 */
export function readYaml(text: string, locate: Locate): ReadYaml {
  const lines = new LineCounter();
  const mistakes: Mistake[] = [];
  const at = (offset: number): Origin => {
    const { line, col } = lines.linePos(offset);
    return locate(Math.max(1, line), Math.max(1, col));
  };
  const complain = (offset: number, message: string) => mistakes.push({ where: positionText(at(offset)), message });

  const complainAtMark = (mark: string, offset: number, message: string) =>
    complain(Math.max(0, text.lastIndexOf(mark, offset)), message);
  let node: Node | undefined;
  try {
    const contents = parseOne(text, lines, complain);
    if (mistakes.length === 0 && contents) node = toNode(contents, { at, complain, complainAtMark });
  } catch (error) {
    // Parser and reader recurse; nesting thousands deep ends here.
    complain(0, `is not YAML that can be read: ${oneLine((error as Error).message)}`);
  }
  return { node: mistakes.length > 0 ? undefined : node, mistakes };
}

function parseOne(text: string, lineCounter: LineCounter, complain: Reader["complain"]): YamlNode | null | undefined {
  const parsed = parseAllDocuments(text, { lineCounter, prettyErrors: false, logLevel: "silent", merge: false });
  const documents: Document.Parsed[] = "empty" in parsed ? [] : parsed;
  for (const { errors, warnings } of documents) {
    for (const { code, pos, message } of [...errors, ...warnings]) complain(pos[0], syntaxMessage(code, message));
  }
  const second = documents[1];
  if (second !== undefined) complain(second.range[0], "a second document (---) begins here; a file holds one");
  return documents[0]?.contents;
}

/** `file:line:column`, or the flag verbatim. */
export function positionText(origin: Origin): string {
  if (origin.kind === "file" || origin.kind === "backend") {
    return `${oneLine(origin.file)}:${origin.line}:${origin.column}`;
  }
  return origin.kind === "override" ? oneLine(origin.text) : "the script's config";
}

function syntaxMessage(code: string, message: string): string {
  if (code === "DUPLICATE_KEY") return "this key appears twice in its section";
  if (code === "TAG_RESOLVE_FAILED") return tagMessage;
  if (code === "TAB_AS_INDENT") return "a tab indents this line; YAML takes spaces only";
  return oneLine(message);
}

const tagMessage = "tags (!...) are not understood; put text in quotes instead";

interface Reader {
  at(offset: number): Origin;
  complain(offset: number, message: string): void;
  /** Complains where `mark` was last written before `offset`. */
  complainAtMark(mark: string, offset: number, message: string): void;
}

function toNode(yaml: YamlNode, reader: Reader): Node {
  const { at, complain } = reader;
  const offset = yaml.range?.[0] ?? 0;
  const origin = at(offset);
  if (isAlias(yaml)) {
    complain(
      offset,
      `aliases (*${oneLine(yaml.source)}) are not understood; refer to another value by \${section.key}`,
    );
    return { kind: "value", origin, value: null };
  }
  refuseExtras(yaml, offset, reader);
  if (isMap(yaml)) {
    const entries = yaml.items.map(({ key, value }) => {
      const keyNode = key as YamlNode;
      const keyOffset = keyNode.range?.[0] ?? offset;
      const keyOrigin = at(keyOffset);
      if (!isScalar(keyNode)) complain(keyOffset, "a key must be a plain name");
      else refuseExtras(keyNode, keyOffset, reader);
      const name = isScalar(keyNode) ? (keyNode.source ?? String(keyNode.value)) : "";
      const node = value === null ? empty(keyOrigin) : toNode(value as YamlNode, reader);
      // A value is located by its key: that is where a person looks for it.
      return { name, origin: keyOrigin, node: { ...node, origin: keyOrigin } };
    });
    return { kind: "map", origin, entries };
  }
  if (isSeq(yaml)) {
    const value = yaml.items.map((item) => plain(item === null ? empty(origin) : toNode(item as YamlNode, reader)));
    return { kind: "value", origin, value };
  }
  if (!isScalar(yaml)) return empty(origin);
  const text = yaml.source;
  return { kind: "value", origin, value: yaml.value, ...(text === undefined ? {} : { text }) };
}

const empty = (origin: Origin): Node => ({ kind: "value", origin, value: null });

function refuseExtras(yaml: YamlNode, offset: number, { complainAtMark }: Reader): void {
  const { anchor, tag } = yaml as { anchor?: string; tag?: string };
  if (anchor) {
    complainAtMark(
      "&",
      offset,
      `anchors (&${oneLine(anchor)}) are not understood; refer to a value by \${section.key}`,
    );
  }
  if (tag) complainAtMark(tag.startsWith("tag:yaml.org") ? "!!" : "!", offset, tagMessage);
}

function plain(node: Node): unknown {
  if (node.kind === "value") return node.value;
  return Object.fromEntries(node.entries.map(({ name, node: child }) => [name, plain(child)]));
}
