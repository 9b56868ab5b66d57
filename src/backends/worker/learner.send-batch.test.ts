import { describe, expect, it } from "vitest";
import type { Sequence } from "../../trajectories/types.ts";
import type { Connection } from "./connection.ts";
import { sendOnce } from "./learner.ts";

const batchOf = (tokens: number): Sequence[] => [
  { tokens: new Int32Array(tokens).fill(7), trained: new Uint8Array(tokens - 1).fill(1) },
];

/** A worker that numbers the batches it gets; the first `failures` requests fail. */
function numbering(failures = 0) {
  const requests: string[] = [];
  let last = 0;
  const connection: Connection = {
    request(op, fields) {
      const answer = Promise.resolve().then(() => {
        if (failures-- > 0) throw new Error("unknown image");
        if (op === "stage") last++;
        requests.push(op === "stage" ? `stage ${last}` : `${op} ${fields?.batch}`);
        return { header: op === "stage" ? { batch: last } : {}, arrays: {} };
      });
      return { id: 1, answer, reply: () => {} };
    },
    waitingFor: () => [],
    close: async () => {},
  };
  return { send: sendOnce(connection), requests };
}

const numberOf = async (sent: ReturnType<ReturnType<typeof numbering>["send"]>) => (await sent).fields.batch;

describe("sendOnce", () => {
  it("stages the same sequences once, also for calls at the same time and in another array", async () => {
    const { send, requests } = numbering();
    const batch = batchOf(3);
    expect(await Promise.all([numberOf(send(batch)), numberOf(send([...batch]))])).toEqual([1, 1]);
    expect(await numberOf(send([...batch]))).toBe(1);
    expect(await numberOf(send(batchOf(3)))).toBe(2);
    expect(await numberOf(send([...batch, ...batch]))).toBe(3);
    expect(requests).toEqual(["stage 1", "stage 2", "stage 3"]);
  });

  it("drops the batch that was not used for longest", async () => {
    const { send, requests } = numbering();
    const batches = [3, 4, 5, 6, 7].map(batchOf);
    for (const batch of batches.slice(0, 4)) await send(batch);
    await send(batches[0]!);
    await send(batches[4]!);
    await new Promise(setImmediate);
    expect(requests).toEqual(["stage 1", "stage 2", "stage 3", "stage 4", "stage 5", "unstage 2"]);
    expect(await numberOf(send(batches[0]!))).toBe(1);
  });

  it("sends a batch again that the worker did not accept", async () => {
    const { send } = numbering(1);
    const batch = batchOf(3);
    await expect(send(batch)).rejects.toThrow("unknown image");
    expect(await numberOf(send(batch))).toBe(1);
  });
});
