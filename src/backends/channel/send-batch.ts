/** Sends the sequences of a call: with the call itself, or once for all calls about them. */
import type { Sequence } from "../../trajectories/types.ts";
import type { Connection } from "./connection.ts";
import { type OutgoingArrays, readNumber } from "./frames.ts";
import { mediaFields } from "./media.ts";
import { sequenceArrays } from "./ragged.ts";

/** What a request about these sequences contains. */
export type SendBatch = (
  sequences: readonly Sequence[],
) => Promise<{ fields: Record<string, unknown>; arrays: OutgoingArrays }>;

export const sendWithCall: SendBatch = async (sequences) => {
  const { fields, arrays } = mediaFields(sequences);
  return { fields, arrays: { ...sequenceArrays(sequences), ...arrays } };
};

/** Number of batches that the worker keeps: those of the policy, its reference and a critic, and one more. */
const maxStaged = 4;

/** Stages each batch in the worker when it is first needed. A batch is the same if its sequences are the same objects. */
export function sendOnce(connection: Connection): SendBatch {
  const staged = new Map<readonly Sequence[], Promise<number>>();

  async function stage(sequences: readonly Sequence[]): Promise<number> {
    const { fields, arrays } = await sendWithCall(sequences);
    return readNumber((await connection.request("stage", fields, arrays).answer).header.batch);
  }

  function unstage(number: Promise<number>): void {
    // A batch that could not be staged has already failed its call.
    void number.then((batch) => connection.request("unstage", { batch }).answer).catch(() => {});
  }

  return async (sequences) => {
    const key = [...staged.keys()].find((other) => sameElements(other, sequences)) ?? sequences;
    const number = staged.get(key) ?? stage(sequences);
    // The most recently used batch is the last.
    staged.delete(key);
    staged.set(key, number);
    for (const [oldest, its] of [...staged].slice(0, Math.max(0, staged.size - maxStaged))) {
      staged.delete(oldest);
      unstage(its);
    }
    try {
      return { fields: { batch: await number }, arrays: {} };
    } catch (error) {
      if (staged.get(key) === number) staged.delete(key);
      throw error;
    }
  };
}

const sameElements = <T>(one: readonly T[], other: readonly T[]) =>
  one.length === other.length && one.every((element, index) => element === other[index]);
