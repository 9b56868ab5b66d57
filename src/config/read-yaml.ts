/**
 * YAML text to nodes with positions. Knows nothing of the schema. Plain scalars are read as OmegaConf reads them;
 * anchors, aliases and merge keys (`<<`) are resolved here.
 */

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
import { readScalar } from "./hydra/scalars.ts";
import type { Entry, Mistake, Node } from "./node.ts";
import { type Origin, oneLine } from "./origin.ts";

/** More than this is no configuration but a file named by mistake. */
const largestFile = 1_000_000;
/** Aliases of aliases grow without end; no configuration has as many values or as many levels. */
const mostNodes = 100_000;
const deepest = 100;

export interface ReadYaml {
  /** Undefined when the text holds nothing. */
  node: Node | undefined;
  mistakes: Mistake[];
}

export function readYamlFile(file: string): ReadYaml {
  const read = readTextFile(file);
  if (read.mistake !== undefined) return { node: undefined, mistakes: [read.mistake] };
  return readYaml(read.text, (line, column) => ({ kind: "file", file, line, column }));
}

/** A configuration file's text, or what keeps it from being read. */
export function readTextFile(file: string): { text: string; mistake?: undefined } | { mistake: Mistake } {
  const wrong = (message: string) => ({ mistake: { where: oneLine(file), message } });
  try {
    const { size } = statSync(file);
    if (size > largestFile) return wrong(`has ${size} bytes; a configuration file is smaller than ${largestFile}`);
    return { text: new TextDecoder("utf-8", { fatal: true }).decode(readFileSync(file)) };
  } catch (error) {
    return wrong(readFailure(error));
  }
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
    // Parser and reader recurse; nesting thousands deep ends here.
    complain(0, `is not YAML that can be read: ${oneLine((error as Error).message)}`);
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
  if (second !== undefined) complain(second.range[0], "a second document (---) begins here; a file holds one");
  return documents[0]?.contents;
}

/** `file:line:column`, or the flag verbatim. */
export function positionText(origin: Origin): string {
  if (origin.kind === "reference") return positionText(origin.at);
  if (origin.kind === "file") {
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
  anchors: Map<string, { node: Node; size: number }>;
  /** So far, with what aliases repeat. */
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
  if (depth > deepest) {
    complain(offset, `is nested deeper than ${deepest} levels`);
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
      // A value is located by its key: that is where a person looks for it.
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
  return { kind: "value", origin, value, ...(typeof value === "string" || value === null ? {} : { text }) };
}

function aliased(name: string, offset: number, reader: Reader): Node {
  const anchor = reader.anchors.get(name);
  if (anchor === undefined) {
    reader.complain(offset, `refers to the anchor &${oneLine(name)}, which is not set before this line`);
    return empty(reader.at(offset));
  }
  reader.nodes += anchor.size;
  if (reader.nodes > mostNodes) {
    reader.complain(offset, `repeats values by aliases until there are more than ${mostNodes}`);
    reader.nodes = 0;
  }
  return anchor.node;
}

/** What `<<: *anchor` or `<<: [*first, *second]` brings in; the section's own keys win, then earlier anchors. */
function mergedEntries(node: Node, offset: number, reader: Reader): Entry[] {
  if (node.kind === "map") return node.entries;
  if (node.kind === "list" && node.items.every(({ kind }) => kind === "map")) {
    return node.items.flatMap((item) => (item.kind === "map" ? item.entries : []));
  }
  reader.complain(offset, "<< takes a section or a list of sections");
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
