/** Bits per byte of the trained text, without special tokens, as in the Tinker cookbook: comparable between tokenizers. */
import type { Chat } from "../chat/types.ts";
import type { Sequence } from "../trajectories/types.ts";

export interface TextMeter {
  isText(token: number): boolean;
  /** Of the trained text. */
  measure(sequences: readonly Sequence[]): { tokens: number; bytes: number };
}

/** Nothing if there is no text. */
export const bitsPerByte = (name: string, nats: number, bytes: number): Record<string, number> =>
  bytes === 0 ? {} : { [name]: nats / Math.LN2 / bytes };

export function openTextMeter({ decode }: Chat): TextMeter {
  const known = new Map<number, boolean>();
  const isText = (token: number): boolean => {
    let text = known.get(token);
    if (text === undefined) {
      text = decode([token]) === "" || decode([token], { skipSpecial: true }) !== "";
      known.set(token, text);
    }
    return text;
  };
  return {
    isText,
    measure(sequences) {
      let [tokens, bytes] = [0, 0];
      for (const run of sequences.flatMap((sequence) => runsOf(sequence, isText))) {
        tokens += run.length;
        bytes += Buffer.byteLength(decode(run));
      }
      return { tokens, bytes };
    },
  };
}

/** Trained tokens of text without gaps. */
function runsOf({ tokens, trained }: Sequence, isText: (token: number) => boolean): number[][] {
  const runs: number[][] = [[]];
  for (const [position, flag] of trained.entries()) {
    const token = tokens[position + 1]!;
    if (flag === 1 && isText(token)) runs.at(-1)!.push(token);
    else if (runs.at(-1)!.length > 0) runs.push([]);
  }
  return runs;
}
