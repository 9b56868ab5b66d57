/** Finds words in an episode. The browser's own search finds only the part of a virtual list that is in the document. */
import { printable } from "../parts/printable.ts";
import type { Block } from "./blocks.ts";
import { tokenText } from "./token-text.ts";

/** The match is the `nth` one, from 0, that begins in this block. */
export interface Match {
  block: number;
  nth: number;
}

/** Finds these characters in any case; undefined: nothing to find. */
export const patternOf = (words: string): RegExp | undefined =>
  words.trim() === "" ? undefined : new RegExp(words.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&"), "giu");

/** All matches, in the order of the page. A text that is cut into several blocks is one text. */
export function matchesOf(blocks: readonly Block[], pattern: RegExp): Match[] {
  const matches: Match[] = [];
  for (let first = 0; first < blocks.length; ) {
    let end = first + 1;
    while (end < blocks.length && isContinued(blocks[end - 1]!, blocks[end]!)) end++;
    const texts = blocks.slice(first, end).map(textOf);
    const before = new Map<number, number>();
    let block = 0;
    let reached = texts[0]!.length;
    for (const { index } of texts.join("").matchAll(pattern)) {
      while (index >= reached && block < texts.length - 1) reached += texts[++block]!.length;
      const nth = before.get(block) ?? 0;
      before.set(block, nth + 1);
      matches.push({ block: first + block, nth });
    }
    first = end;
  }
  return matches;
}

function isContinued(block: Block, next: Block): boolean {
  if (block.kind !== next.kind || !("of" in block && "of" in next) || block.of !== next.of) return false;
  return block.kind === "message" ? next.kind === "message" && block.part === next.part : block.kind !== "result";
}

function textOf(block: Block): string {
  switch (block.kind) {
    case "sampled":
    case "prompt": {
      const { ids, pieces } = block.of[block.kind];
      return ids
        .slice(block.from, block.to)
        .map((id, at) => tokenText(pieces?.[block.from + at], id))
        .join("");
    }
    case "message":
      return printable(block.text) + (block.last ? callsOf(block.of.toolCalls ?? []) : "");
    case "reply":
      return printable(block.text);
    case "result":
      return callsOf(block.of.reply.toolCalls);
    default:
      return "";
  }
}

const callsOf = (calls: readonly { name: string; arguments: string }[]) =>
  calls.map((call) => `\n${printable(call.name)}\n${printable(call.arguments)}`).join("");

/** The ranges of the document in which an element shows the pattern. */
export function rangesIn(element: Element, pattern: RegExp): Range[] {
  const nodes: { node: Node; start: number }[] = [];
  let text = "";
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node !== null; node = walker.nextNode()) {
    if (node.parentElement?.closest(".role, .token small, .turn, .trajectory, .tools-offered, p.muted")) continue;
    nodes.push({ node, start: text.length });
    text += node.nodeValue ?? "";
  }
  const place = (offset: number) => nodes.findLast(({ start }) => start <= offset)!;
  return [...text.matchAll(pattern)].map(({ index, 0: found }) => {
    const range = document.createRange();
    const [from, to] = [place(index), place(index + found.length - 1)];
    range.setStart(from.node, index - from.start);
    range.setEnd(to.node, index + found.length - to.start);
    return range;
  });
}
