/** The place of a token in an episode. */
import type { Block } from "./blocks.ts";

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
