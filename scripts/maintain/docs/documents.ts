/** The Markdown that users read, and its parts, for tests. */
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { packageRoot } from "../../setup/paths.mjs";
import { readDocument } from "./site-map.ts";

const inside = (folder: string) =>
  readdirSync(join(packageRoot, folder), { recursive: true, encoding: "utf8" })
    // Other Markdown of an example is part of it, such as an agent's prompt.
    .filter((name) => (folder === "examples" ? /^[^/\\]+[/\\]README\.md$/ : /\.md$/).test(name))
    .map((name) => `${folder}/${name.replaceAll("\\", "/")}`)
    .sort();

/** Their paths in the repository. */
export const documents: readonly string[] = [
  "README.md",
  "CONTRIBUTING.md",
  "CHANGELOG.md",
  "worker/PROTOCOL.md",
  ...["docs", "examples", "skills"].flatMap(inside),
];

interface Block {
  /** `docs/guide/agents.md:17`, the line of the fence. */
  place: string;
  language: string;
  code: string;
}

/** The code blocks of a document, without the indentation of lists. */
export function blocksOf(document: string): Block[] {
  const text = readDocument(document);
  return [...text.matchAll(/^( *)```(\S*).*\n([\s\S]*?)^ *```$/gm)].map(
    ({ 1: indent = "", 2: language = "", 3: code = "", index }) => ({
      place: `${document}:${text.slice(0, index).split("\n").length}`,
      language,
      code: code.replaceAll(new RegExp(`^${indent}`, "gm"), ""),
    }),
  );
}

/** A document without its code: blocks become empty lines, so that lines keep their numbers. */
export const proseOf = (document: string): string =>
  readDocument(document).replaceAll(/^( *)```[\s\S]*?^ *```$/gm, (block) => block.replaceAll(/[^\n]/g, ""));

interface ShownCommand {
  place: string;
  /** What follows `hone`, as the shell passes it on. `...` stands for what is left out. */
  words: readonly string[];
}

const shells = ["sh", "bash", "console", ""];

/** The commands of `hone` in the code blocks of all documents. */
export const shownCommands = (): ShownCommand[] =>
  documents.flatMap((document) =>
    blocksOf(document)
      .filter(({ language }) => shells.includes(language))
      .flatMap(({ place, code }) =>
        code
          .replaceAll(/\\\n/g, " ")
          .split("\n")
          .flatMap(commandsOfLine)
          .map((words) => ({ place, words })),
      ),
  );

/** `A=b npx hone-rl train x && hone view # why` -> `[["train", "x"], ["view"]]` */
function commandsOfLine(line: string): string[][] {
  return splitCommands(shellWords(line)).flatMap((words) => {
    const named = words.filter((word, index) => !(/^[A-Z_]+=/.test(word) && index < 6)).join(" ");
    const start = /^(\$ )?(npx (--yes )?hone-rl|npx tsx bin\/hone\.js|hone) /.exec(`${named} `);
    if (start === null) return [];
    const first = words.findIndex((word) => word === "hone-rl" || word === "hone");
    return [words.slice(first + 1)];
  });
}

function splitCommands(words: readonly string[]): string[][] {
  const commands: string[][] = [[]];
  for (const word of words) {
    if (["&&", "||", "|", ";", "&"].includes(word)) commands.push([]);
    else commands.at(-1)!.push(word);
  }
  return commands;
}

/** Splits as a shell does: quotes are removed, a comment and what is redirected are left out. */
export function shellWords(line: string): string[] {
  const pieces = line.match(/(?:[^\s"']|"[^"]*"|'[^']*')+/g) ?? [];
  const comment = pieces.findIndex((piece) => piece.startsWith("#"));
  const said = comment === -1 ? pieces : pieces.slice(0, comment);
  const redirected = said.findIndex((piece) => piece === ">" || piece === "<");
  return (redirected === -1 ? said : said.slice(0, redirected)).map((piece) =>
    piece.replaceAll(/"([^"]*)"|'([^']*)'/g, (_, double, single) => double ?? single),
  );
}
