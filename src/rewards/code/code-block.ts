/** Finds the program in a reply. */

export interface CodeBlock {
  /** The word after the fence in lower case, or empty. */
  language: string;
  code: string;
}

const fence = /^[ \t]*```([\w+-]*)/;

/** The last closed fenced block, if any. */
export function codeBlock(reply: string): CodeBlock | undefined {
  let open: { language: string; lines: string[] } | undefined;
  let last: CodeBlock | undefined;
  for (const line of reply.split("\n")) {
    const mark = fence.exec(line);
    if (open === undefined) {
      if (mark) open = { language: (mark[1] ?? "").toLowerCase(), lines: [] };
    } else if (mark && line.trim() === "```") {
      last = { language: open.language, code: open.lines.map((text) => `${text}\n`).join("") };
      open = undefined;
    } else open.lines.push(line);
  }
  return last;
}
