import { expect, it } from "vitest";
import { toFailure } from "../rollout/outcome.ts";
import type { Episode } from "../trajectories/types.ts";
import { attributeFailure } from "./failures.ts";

const cut = "was cut off after 4 tokens (data.max_response_length)";
function episode(error?: Error, fault?: string): Episode {
  const facts = {
    seconds: 0,
    id: "t:0",
    taskId: "t",
    rollout: 0,
    trajectories: [],
    correct: null,
    retries: 0,
    metrics: {},
  };
  if (error === undefined) return { ...facts, termination: "env_done" } as Episode;
  const termination = fault === undefined ? "error" : "max_response_length_exceeded";
  return { ...facts, termination, failure: toFailure(error, "workflow", fault) } as Episode;
}
const crash = (code = 1) => new Error(`agent.py ended with exit code ${code}`);

function judge(...episodes: Episode[]) {
  const warnings: string[] = [];
  const judged = attributeFailure(episodes, (text) => warnings.push(text));
  return { kinds: judged.map(({ failure, termination }) => `${failure?.kind} ${termination}`), warnings };
}

it("a program that always crashes is not the model's failure, also after a cut-off reply", () => {
  const { kinds, warnings } = judge(episode(crash(), cut), episode(crash(2), cut), episode(crash()));
  expect(kinds).toEqual(["agent error", "agent error", "agent error"]);
  expect(warnings).toEqual([
    expect.stringMatching(/^2 rollouts that failed after a faulty reply .* count as .* agent/),
  ]);
});

it("an error whose message quotes the reply is the same error if the same line throws it", () => {
  const thrown = (reply: string, line: number) =>
    Object.assign(new SyntaxError(`Unexpected token in ${reply}`), {
      stack: `SyntaxError: Unexpected token in ${reply}\n    at JSON.parse (<anonymous>)\n    at workflow (/home/user/train.ts:${line}:10)`,
    });
  const { kinds } = judge(episode(thrown("x", 6), cut), episode(thrown("y", 7), cut), episode(thrown("z", 6)));
  expect(kinds).toEqual(["agent error", "model max_response_length_exceeded", "agent error"]);
});

it.each([
  ["a program that works after sound replies", [episode(crash(), cut), episode(crash()), episode()]],
  ["another error", [episode(crash(), cut), episode(new Error("no such file"))]],
  ["only faulty replies", [episode(crash(), cut), episode(crash(), cut)]],
])("failures after a cut-off reply stay the model's: %s", (_, episodes) => {
  const { kinds, warnings } = judge(...episodes);
  expect([kinds[0], warnings]).toEqual(["model max_response_length_exceeded", []]);
});
