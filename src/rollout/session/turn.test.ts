import { describe, expect, it } from "vitest";
import { singleTurn } from "../../agents/single-turn.ts";
import { type Row, setUp, tasksOf } from "../run-rollouts.fixture.ts";
import { reachedLimit, responseRoom } from "./turn.ts";

const limits = { maxPromptLength: 100, maxResponseLength: 64, maxLength: 120, contextWindow: 200 };

describe("the limit that cut a reply off", () => {
  it.each([
    ["the call's own", 10, 48, 48, limits, "call"],
    ["the configured one, if the call has none", 10, 64, undefined, limits, "max_response_length"],
    ["the configured one, if the call asks for more", 10, 64, 1000, limits, "max_response_length"],
    ["the rest of the configured one after earlier turns", 10, 20, undefined, limits, "max_response_length"],
    ["the sequence's", 80, 40, undefined, limits, "max_length"],
    ["the model's", 80, 40, undefined, { ...limits, maxLength: 1000, contextWindow: 120 }, "context_window"],
  ] as const)("is %s", (_which, promptLength, maxTokens, asked, given, expected) => {
    expect(reachedLimit(promptLength, maxTokens, asked, given)).toBe(expected);
  });

  it("is recorded with the step: maxOutputTokens 48 is not data.max_response_length 64", async () => {
    const cut = async (params: { maxTokens?: number }) => {
      const workflow = singleTurn<Row>({ prompt: () => "a", reward: () => 0, params });
      const { run } = setUp({ workflow, reply: () => "x".repeat(200), limits });
      const [episode] = await run({ tasks: tasksOf("one"), n: 1 });
      return episode!.trajectories[0]!.steps.map(({ tokens, cutOffBy }) => [tokens.length, cutOffBy]);
    };
    expect(await cut({ maxTokens: 48 })).toEqual([[48, "call"]]);
    expect(await cut({})).toEqual([[64, "max_response_length"]]);
  });
});

it.each([
  [{ maxPromptLength: 9 }, /the limit is 9 \(data\.max_prompt_length\)/],
  [{ maxLength: 9 }, /the limit is 8 \(training\.max_length less 1\)/],
  [{ contextWindow: 9 }, /the limit is 8 \(the model's context window less 1\)/],
])("a prompt that is too long names its limit: %j", (given, message) => {
  expect(() => responseRoom(10, { ...limits, ...given })).toThrow(message);
});
