import { describe, expect, test } from "vitest";
import type { Turn } from "../../src/apps/view/queries/episode.ts";
import { addressOfToken, type Block, blocksOf, contains, placeOf } from "./blocks.ts";
import { matchesOf, patternOf } from "./find.ts";

const pieces = Array.from({ length: 300 }, (_, index) => (index === 239 ? " so" : index === 240 ? "rry" : " a"));
const turn: Turn = {
  messages: [
    { role: "user", content: "Sorry? (sorry)" },
    { role: "assistant", content: "", toolCalls: [{ id: "1", name: "excuse", arguments: '{"for": "sorry"}' }] },
  ],
  continues: null,
  reply: { text: "", content: "", toolCalls: [], problems: [] },
  promptLength: 1,
  prompt: { ids: [1], pieces: ["sorry"] },
  sampled: { ids: pieces.map((_, index) => index), pieces, logprobs: 0, version: 0 },
  stopReason: "stop",
  reward: null,
};
const detail = [{ role: "agent", reward: 1, advantage: 0, tokens: 300, turns: 1, scores: {}, turnList: [turn] }];
const blocks = blocksOf({ detail }, false);
const kinds = (found: { block: number; nth: number }[], of: readonly Block[] = blocks) =>
  found.map(({ block, nth }) => `${of[block]!.kind} ${nth}`);

describe("finding words in an episode", () => {
  test("in any case, in messages, tool calls, and over the cut of a long reply", () => {
    const found = matchesOf(blocks, patternOf("sorry")!);
    expect(kinds(found)).toEqual(["message 0", "message 1", "message 0", "sampled 0"]);
    const last = blocks[found.at(-1)!.block]!;
    expect(last).toMatchObject({ from: 0, to: 240 });
  });

  test("signs are themselves, and nothing is found for nothing", () => {
    expect(kinds(matchesOf(blocks, patternOf("(sorry)")!))).toEqual(["message 0"]);
    expect(matchesOf(blocks, patternOf("nowhere")!)).toEqual([]);
    expect(patternOf("  ")).toBeUndefined();
  });

  test("the exact prompt is searched where it is shown", () => {
    const exact = blocksOf({ detail }, true);
    expect(kinds(matchesOf(exact, patternOf("sorry")!), exact)).toEqual(["prompt 0", "sampled 0"]);
  });
});

test.each(["0.0.57", "1.2.p0"])("%s is the address of a token", (at) => expect(addressOfToken(placeOf(at))).toBe(at));
test.each(["", "0.0", "0.0.x", "0.0.5 "])("%j is not the address of a token", (at) => expect(placeOf(at)).toBeNull());

test("a token is in one block", () => {
  const at = (index: number) => blocks.filter((block) => contains(block, placeOf(`0.0.${index}`)));
  expect(at(239)).toMatchObject([{ kind: "sampled", from: 0, to: 240 }]);
  expect(at(240)).toMatchObject([{ kind: "sampled", from: 240, to: 300 }]);
  expect(at(300)).toEqual([]);
});
