import { describe, expect, it } from "vitest";
import type { Loss } from "../../algorithms/types.ts";
import type { Sequence } from "../../trajectories/types.ts";
import { NonFiniteLossError } from "../engine-parts.ts";
import type { Connection, Frame, OutgoingArrays } from "./connection.ts";
import { forwardBackward, sendWithCall } from "./learner.ts";

/** Three sequences with 2, 0 and 3 trained tokens; a token's log-probability is minus its place in the batch. */
const sequences: Sequence[] = [
  [1, 0, 1],
  [0, 0],
  [1, 1, 1],
].map((trained) => ({
  tokens: new Int32Array(trained.length + 1),
  trained: new Uint8Array(trained),
}));
const places = [[0, 1], [], [2, 3, 4]];

/** A worker that sends these micro-batches, one after the other, and keeps what comes back. */
function scripted(microBatches: readonly (readonly number[])[]) {
  const replies: (number[] | "cancel")[] = [];
  const operations: string[] = [];
  const outputs = (members: readonly number[]): Frame => ({
    header: { event: "outputs" },
    arrays: {
      sequences: { data: new Int32Array(members), shape: [members.length] },
      logprobs: {
        data: new Float32Array(members.flatMap((member) => places[member]!.map((place) => -place))),
        shape: [],
      },
    },
  });
  const connection: Connection = {
    request(op, _fields, _arrays, onEvent) {
      operations.push(op);
      const answer = Promise.resolve().then(() => {
        if (op === "forward") return outputs([0, 1, 2]);
        for (const members of microBatches) onEvent?.(outputs(members));
        return { header: { ok: true }, arrays: {} };
      });
      const reply = (replyOp: string, arrays?: OutgoingArrays) => {
        replies.push(replyOp === "cancel" ? "cancel" : Array.from(arrays!.logprobs as Float32Array));
      };
      return { id: 1, answer, reply };
    },
    waitingFor: () => [],
    close: async () => {},
  };
  return { connection, replies, operations };
}

/** Sum of squares of the log-probabilities, with the sequences it was evaluated on. */
function squares(seen: number[][] = [], coupled = false): Loss {
  return {
    name: "squares",
    outputs: {},
    ...(coupled ? { coupled: true as const } : {}),
    evaluate({ logprobs }, members) {
      seen.push(Array.from(members));
      return {
        loss: logprobs.reduce((total, value) => total + value * value, 0),
        gradient: { logprobs: logprobs.map((value) => 2 * value) },
        metrics: { tokens: { sum: logprobs.length, count: 1 } },
      };
    },
  };
}

describe("forwardBackward", () => {
  it.each([
    ["one micro-batch", [[0, 1, 2]]],
    ["one each, in another order", [[2], [0], [1]]],
    ["a micro-batch that ran out of memory and came again in parts", [[0], [1, 2], [1], [2]]],
    ["the same twice over", [[0, 1, 2], [0, 1], [2], [2]]],
  ])("adds up %s", async (_what, microBatches) => {
    const { connection, replies } = scripted(microBatches);
    const result = await forwardBackward(connection, 1, sendWithCall, sequences, squares());
    expect(result.loss).toBe(30);
    expect(result.metrics.tokens?.sum).toBe(5);
    expect(Array.from(result.outputs.logprobs)).toEqual([-0, -1, -2, -3, -4]);
    expect(replies.at(-1)).toEqual(
      microBatches.at(-1)!.flatMap((member) => places[member]!.map((place) => -2 * place)),
    );
  });

  it("passes the whole batch to a coupled loss first, once", async () => {
    const seen: number[][] = [];
    const { connection, replies, operations } = scripted([[2], [0, 1]]);
    const result = await forwardBackward(connection, 1, sendWithCall, sequences, squares(seen, true));
    expect([seen, operations]).toEqual([[[0, 1, 2]], ["forward", "forward_backward"]]);
    expect([result.loss, replies]).toEqual([
      30,
      [
        [-4, -6, -8],
        [-0, -2],
      ],
    ]);
  });

  it.each([
    [
      "throws",
      {
        evaluate: () => {
          throw new Error("broken loss");
        },
      },
      /broken loss/,
    ],
    [
      "is NaN",
      { evaluate: () => ({ loss: Number.NaN, gradient: { logprobs: new Float32Array(2) }, metrics: {} }) },
      NonFiniteLossError,
    ],
    [
      "gives too few entries",
      { evaluate: () => ({ loss: 0, gradient: { logprobs: new Float32Array(1) }, metrics: {} }) },
      /1 entries for 2/,
    ],
  ])("cancels once when the loss %s", async (_what, part, error) => {
    const { connection, replies } = scripted([[0], [1], [2]]);
    await expect(forwardBackward(connection, 1, sendWithCall, sequences, { ...squares(), ...part })).rejects.toThrow(
      error,
    );
    expect(replies).toEqual(["cancel"]);
  });
});
