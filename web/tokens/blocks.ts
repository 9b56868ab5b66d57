/**
 * An episode as a flat list of blocks for a virtual list. Long messages and replies are cut into blocks of bounded size, at
 * line breaks where there are some, so 30,000 tokens or a line of a megabyte open as fast as a short reply.
 */
import type { Episode, Message, TrajectoryDetail, Turn } from "../../src/apps/view/queries/episode.ts";

export type Block = { key: string; trajectory: number; turn: number } & (
  | { kind: "trajectory"; of: TrajectoryDetail }
  | { kind: "turn"; of: Turn }
  | { kind: "tools"; of: NonNullable<Turn["tools"]> }
  | { kind: "message"; of: Message; part: "content" | "thinking"; text: string; first: boolean; last: boolean }
  | { kind: "prompt"; of: Turn; from: number; to: number }
  | { kind: "sampled"; of: Turn; from: number; to: number }
  | { kind: "reply"; of: Turn; text: string; first: boolean }
  | { kind: "result"; of: Turn }
);

const textLength = { wanted: 1500, max: 4000 };
const tokenCount = { wanted: 120, max: 240 };

/** @param exact shows the prompt's tokens instead of its messages */
export function blocksOf({ detail }: Pick<Episode, "detail">, exact: boolean): Block[] {
  const blocks: Block[] = [];
  for (const [trajectory, of] of detail.entries()) {
    // With one trajectory, the episode's head says the same.
    const add = (turn: number, block: DistributiveOmit<Block, "key" | "trajectory" | "turn">) =>
      blocks.push({ ...block, trajectory, turn, key: `${blocks.length}` } as Block);
    if (detail.length > 1) add(0, { kind: "trajectory", of });
    for (const [turn, one] of of.turnList.entries()) {
      add(turn, { kind: "turn", of: one });
      if (one.tools) add(turn, { kind: "tools", of: one.tools });
      if (exact) {
        for (const [from, to] of cutTokens(one.prompt.pieces ?? one.prompt.ids.map(() => " ")))
          add(turn, { kind: "prompt", of: one, from, to });
      } else {
        for (const message of one.messages) for (const part of messageParts(message)) add(turn, part);
      }
      if (one.sampled.pieces || exact) {
        const pieces = one.sampled.pieces ?? one.sampled.ids.map(() => " ");
        for (const [from, to] of cutTokens(pieces)) add(turn, { kind: "sampled", of: one, from, to });
      } else {
        for (const [index, text] of cutText(one.reply.text).entries())
          add(turn, { kind: "reply", of: one, text, first: index === 0 });
      }
      add(turn, { kind: "result", of: one });
    }
  }
  return blocks;
}

type DistributiveOmit<T, K extends PropertyKey> = T extends unknown ? Omit<T, K> : never;

type MessageBlock = DistributiveOmit<Extract<Block, { kind: "message" }>, "key" | "trajectory" | "turn">;

function messageParts(of: Message): MessageBlock[] {
  const texts = [
    ...cutText(of.thinking ?? "").map((text) => ({ part: "thinking" as const, text })),
    ...cutText(of.content).map((text) => ({ part: "content" as const, text })),
  ];
  if (texts.length === 0) texts.push({ part: "content", text: "" });
  return texts.map((one, index) => ({
    kind: "message",
    of,
    ...one,
    first: index === 0,
    last: index === texts.length - 1,
  }));
}

/** Joined, the parts are the text. */
export function cutText(text: string): string[] {
  const parts: string[] = [];
  let start = 0;
  while (text.length - start > textLength.max) {
    const line = text.indexOf("\n", start + textLength.wanted) + 1;
    let end = line > 0 && line - start <= textLength.max ? line : start + textLength.max;
    // Not between the halves of a character.
    if (/[\ud800-\udbff]/.test(text.charAt(end - 1))) end -= 1;
    parts.push(text.slice(start, end));
    start = end;
  }
  if (start < text.length) parts.push(text.slice(start));
  return parts;
}

/** Ranges `[from, to)` of tokens that a block shows. */
export function cutTokens(pieces: readonly string[]): [from: number, to: number][] {
  const ranges: [number, number][] = [];
  let from = 0;
  let length = 0;
  for (const [index, piece] of pieces.entries()) {
    length += piece.length;
    const size = index + 1 - from;
    const full = size >= tokenCount.max || length >= textLength.max;
    if (!full && (size < tokenCount.wanted || !piece.includes("\n"))) continue;
    ranges.push([from, index + 1]);
    from = index + 1;
    length = 0;
  }
  if (from < pieces.length) ranges.push([from, pieces.length]);
  return ranges;
}

/** A token of turn `turn` of a trajectory: of its prompt, or of those that were sampled. */
export interface TokenPlace {
  trajectory: number;
  turn: number;
  prompt: boolean;
  index: number;
}

/** As the address has it: `1.0.57` is token 57 of the first turn of the second trajectory, `1.0.p57` that of its prompt. */
export const addressOfToken = (place: TokenPlace | null): string =>
  place === null ? "" : `${place.trajectory}.${place.turn}.${place.prompt ? "p" : ""}${place.index}`;

/** Null if the address names no token. */
export function placeOf(at: string): TokenPlace | null {
  const [, trajectory, turn, prompt, index] = /^(\d+)\.(\d+)\.(p?)(\d+)$/.exec(at) ?? [];
  if (index === undefined) return null;
  return { trajectory: Number(trajectory), turn: Number(turn), prompt: prompt === "p", index: Number(index) };
}

/** Whether a block shows this token. */
export function contains(block: Block, place: TokenPlace | null): boolean {
  if (place === null || (block.kind !== "sampled" && block.kind !== "prompt")) return false;
  const isSame = block.trajectory === place.trajectory && block.turn === place.turn;
  return isSame && (block.kind === "prompt") === place.prompt && place.index >= block.from && place.index < block.to;
}
