import { expect, test } from "vitest";
import type { StoredTrajectory } from "../../../tracking/episodes.ts";
import { commandsOf } from "./episode.ts";

type Messages = StoredTrajectory["steps"][number]["messages"];
const user = (content: string) => ({ role: "user" as const, content });

function trajectory(turns: { messages: Messages; text: string; calls?: [string, Record<string, unknown>][] }[]) {
  const steps = turns.map(({ messages, text, calls = [] }, turn) => ({
    ...{ messages, text },
    reply: {
      ...{ content: text, problems: [] },
      toolCalls: calls.map(([name, given], at) => ({ id: `${turn}.${at}`, name, arguments: given })),
    },
  }));
  return { name: "agent", steps, reward: 1 } as unknown as StoredTrajectory;
}

const result = (id: string, content: string) => ({ role: "tool" as const, toolCallId: id, content });

test("tool calls with their results; the last one has none", () => {
  const first = [user("fix it")];
  const second: Messages = [
    ...first,
    { role: "assistant", content: "" },
    result("0.0", "a.py\nCommand exited with code 2"),
    result("0.1", "done"),
  ];
  const found = commandsOf([
    trajectory([
      {
        messages: first,
        text: "",
        calls: [
          ["bash", { command: "ls" }],
          ["edit", { file_path: "a.py", new: "x" }],
        ],
      },
      {
        messages: second,
        text: "",
        calls: [
          ["shell", { command: ["make", "test"] }],
          ["other", { a: 1 }],
        ],
      },
    ]),
  ]);
  expect(found).toEqual([
    { role: "agent", turn: 1, tool: "bash", command: "ls", output: "a.py\nCommand exited with code 2", exitCode: 2 },
    { role: "agent", turn: 1, tool: "edit", command: "a.py", output: "done", exitCode: null },
    { role: "agent", turn: 2, tool: "shell", command: "make test", output: null, exitCode: null },
  ]);
});

test.each([
  ["<returncode>0</returncode>\n<output>", 0],
  ["Exit code: 127", 127],
  ['{"output":"","metadata":{"exit_code":1}}', 1],
  ["Process exited with code 3", 3],
  ["exit status 4", 4],
])("the exit code of %j is %i", (output, code) => {
  const first = [user("fix it")];
  const reply = "Look:\n```bash\nls -la\n```";
  const second: Messages = [...first, { role: "assistant", content: reply }, user(output)];
  const found = commandsOf([
    trajectory([
      { messages: first, text: reply },
      { messages: second, text: "Done." },
    ]),
  ]);
  expect(found).toEqual([{ role: "agent", turn: 1, tool: null, command: "ls -la", output, exitCode: code }]);
});

test("a code block that nothing executed is not a command", () => {
  const first = [user("how do I list files?")];
  const reply = "So:\n```bash\nls\n```";
  const second: Messages = [...first, { role: "assistant", content: reply }, user("thanks")];
  expect(
    commandsOf([
      trajectory([
        { messages: first, text: reply },
        { messages: second, text: "ok" },
      ]),
    ]),
  ).toEqual([]);
});
