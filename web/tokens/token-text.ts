/** Texts of tokens. */
import type { Turn } from "../../src/apps/view/queries/episode.ts";
import { printable } from "../parts/printable.ts";

/** What a token shows. Bytes of a split character, and tokens without a text, show their id. */
export function tokenText(piece: string | undefined, id: number): string {
  if (piece === undefined || piece === "") return `⟨${id}⟩`;
  return printable(piece.replaceAll("\ufffd", `⟨${id}⟩`));
}

/** The tokens `[from, to)` of the reply's thinking. */
export function thinkingRange({ reply, sampled }: Pick<Turn, "reply" | "sampled">): { from: number; to: number } {
  const { thinking } = reply;
  const start = thinking && sampled.pieces ? sampled.pieces.join("").indexOf(thinking) : -1;
  const range = { from: 0, to: 0 };
  if (start < 0 || !thinking) return range;
  let end = 0;
  for (const piece of sampled.pieces ?? []) {
    end += piece.length;
    if (end <= start) range.from += 1;
    if (end < start + thinking.length) range.to += 1;
  }
  return { from: range.from, to: range.to + 1 };
}
