import { describe, expect, expectTypeOf, test } from "vitest";
import type { ChatMessage } from "../chat/messages.ts";
import { firstInteger } from "../rewards/text/first-integer.ts";
import { runWorkflow } from "../testing/run-workflow.ts";
import { singleTurn } from "./single-turn.ts";
import type { Outcome, Reply, Workflow } from "./types.ts";

interface Row {
  left: number;
  right: number;
}
const rows: Row[] = [
  { left: 12, right: 31 },
  { left: 40, right: 7 },
];

test("asks, grades, and keeps the grader's explanation", async () => {
  const workflow = singleTurn<Row>({
    prompt: (row) => `${row.left} or ${row.right}?`,
    reward: (row, reply) => firstInteger(reply.text, Math.max(row.left, row.right)),
  });
  const asked: ChatMessage[][] = [];
  const reply = (messages: ChatMessage[]) => {
    asked.push(messages);
    return "31 is larger.";
  };
  const episodes = await runWorkflow({ workflow, rows, reply });
  expect(asked).toEqual([[{ role: "user", content: "12 or 31?" }], [{ role: "user", content: "40 or 7?" }]]);
  expect(
    episodes.map(({ correct, explanation, trajectories }) => [correct, explanation, trajectories[0]?.reward]),
  ).toEqual([
    [true, "the first number is 31, expected 31", 1],
    [false, "the first number is 31, expected 40", 0],
  ]);
});

const user = { role: "user", content: "hi" } as const;
const system = { role: "system", content: "be brief" } as const;
test.each<[string | ChatMessage[], string | undefined, ChatMessage[]]>([
  ["hi", undefined, [user]],
  ["hi", "be brief", [system, user]],
  [[user], "be brief", [system, user]],
  [[system, user], undefined, [system, user]],
])("prompt %j with system %j", async (prompt, own, expected) => {
  const asked: ChatMessage[][] = [];
  const workflow = singleTurn({ prompt: async () => prompt, reward: async () => 1, ...(own ? { system: own } : {}) });
  await runWorkflow({ workflow, rows: [0], reply: (messages) => String(asked.push(messages)) });
  expect(asked).toEqual([expected]);
});

test.each<[unknown, string]>([
  [undefined, "prompt(row) returned undefined instead of a message's text"],
  [7, "prompt(row) returned 7 instead of a message's text"],
  [[], "prompt(row) returned no messages"],
  [[{ role: "user" }], "prompt(row) returned undefined instead of a message's text"],
  [[null], "prompt(row) returned undefined instead of a message's text"],
  ["", "prompt(row) returned an empty text"],
  [[system, user], "prompt(row) returned a system message, but the workflow has a `system` already"],
])("a prompt function that gives %j fails the rollout, naming the row", async (prompt, message) => {
  const workflow = singleTurn({ prompt: () => prompt as string, reward: () => 1, system: "be brief" });
  const run = runWorkflow({ workflow, rows: ["row"], reply: () => "x" });
  await expect(run).rejects.toThrow(`task row/0 (row 0) failed: prompt: ${message}`);
});

describe("types", () => {
  test("the row's type reaches prompt and reward", () => {
    const workflow = singleTurn({
      prompt: (row: Row) => `${row.left}`,
      reward: (row, reply) => {
        expectTypeOf(row).toEqualTypeOf<Row>();
        expectTypeOf(reply).toEqualTypeOf<Reply>();
        return 1;
      },
    });
    expectTypeOf(workflow).toEqualTypeOf<Workflow<Row>>();
    // The type also comes from the place where the workflow is used.
    const typed: Workflow<Row> = singleTurn({
      prompt: (row) => `${row.left}`,
      reward: (row): Outcome => ({ reward: row.right }),
    });
    expectTypeOf(typed).toEqualTypeOf<Workflow<Row>>();
  });

  test("a renamed column is a compile error", () => {
    // @ts-expect-error: rows have no `middle`
    singleTurn<Row>({ prompt: (row) => `${row.middle}`, reward: () => 1 });
    // @ts-expect-error: a reward is not a boolean
    singleTurn<Row>({ prompt: (row) => `${row.left}`, reward: (row) => row.left > row.right });
  });
});
