import fc from "fast-check";
import { describe, expect, test } from "vitest";
import type { TrajectoryDetail, Turn } from "../../src/apps/view/queries/episode.ts";
import { blocksOf, cutText, cutTokens } from "./blocks.ts";

describe("cutting long text", () => {
  test("joins to the same text, in bounded parts, and never splits a character", () => {
    fc.assert(
      fc.property(fc.array(fc.constantFrom("a", "\n", "😀", "x".repeat(900)), { maxLength: 40 }), (pieces) => {
        const parts = cutText(pieces.join(""));
        expect(parts.join("")).toBe(pieces.join(""));
        expect(parts.every((part) => part.length <= 4000 && !/[\ud800-\udbff]$/.test(part))).toBe(true);
      }),
    );
  });

  test("cuts a line of a megabyte", () => expect(cutText("x".repeat(1_000_000))).toHaveLength(250));
  test("prefers line breaks", () => expect(cutText(`${"x".repeat(1999)}\n`.repeat(4))).toHaveLength(3));
});

describe("cutting tokens", () => {
  test("covers each token once, in bounded parts", () => {
    fc.assert(
      fc.property(fc.array(fc.constantFrom(" a", "\n", "x".repeat(500), "")), (pieces) => {
        const ranges = cutTokens(pieces);
        expect(ranges.flatMap(([from, to]) => pieces.slice(from, to))).toEqual(pieces);
        expect(ranges.every(([from, to]) => to > from && to - from <= 240)).toBe(true);
      }),
    );
  });

  test("30,000 tokens are 125 blocks", () => expect(cutTokens(new Array(30_000).fill(" a"))).toHaveLength(125));
});

const turn: Turn = {
  messages: [
    { role: "system", content: "Be brief." },
    { role: "assistant", content: "", thinking: "hm", toolCalls: [{ id: "1", name: "add", arguments: "{}" }] },
  ],
  continues: null,
  tools: [{ name: "add" }],
  reply: { text: "4", content: "4", toolCalls: [], problems: [] },
  promptLength: 2,
  prompt: { ids: [1, 2], pieces: ["Be", " brief"] },
  sampled: { ids: [5], pieces: ["4"], logprobs: [-1], mask: 1, version: 0 },
  stopReason: "stop",
  reward: null,
};
const detail = (turnList: Turn[]): TrajectoryDetail => ({
  role: "agent",
  reward: 1,
  scores: {},
  advantage: 0,
  tokens: 1,
  turns: 1,
  turnList,
});
const kinds = (turns: Turn[], exact = false) => blocksOf({ detail: [detail(turns)] }, exact).map(({ kind }) => kind);

test("an episode's blocks are in reading order", () => {
  expect(kinds([turn])).toEqual(["turn", "tools", "message", "message", "sampled", "result"]);
  expect(kinds([turn], true)).toEqual(["turn", "tools", "prompt", "sampled", "result"]);
});

test("several trajectories have their names", () => {
  const blocks = blocksOf({ detail: [detail([turn]), detail([turn])] }, false);
  expect(blocks.filter(({ kind }) => kind === "trajectory").map(({ trajectory }) => trajectory)).toEqual([0, 1]);
});

test("without a tokenizer the reply is text, and ids are still shown exactly", () => {
  const { pieces: _, ...sampled } = turn.sampled;
  expect(kinds([{ ...turn, sampled }])).toContain("reply");
  expect(kinds([{ ...turn, sampled, prompt: { ids: [1, 2] } }], true)).toEqual(
    expect.arrayContaining(["prompt", "sampled"]),
  );
});
