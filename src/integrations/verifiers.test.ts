import { chmodSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { beforeAll, expect, test } from "vitest";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import { runWorkflow } from "../testing/scripted.ts";
import { type VerifiersOptions, verifiersEnvironment, verifiersTasks } from "./verifiers.ts";

const folder = temporaryFolder("verifiers");
const python = join(folder, "python");

/** Stands for Python: speaks the bridge's protocol. The taskset's id says what happens. */
beforeAll(() => {
  writeFileSync(
    python,
    `#!${process.execPath}
const readline = require("node:readline");
const { taskset, seats, agent } = JSON.parse(process.argv[3]);
const send = (message) => process.stdout.write(JSON.stringify(message) + "\\n");
const trace = { name: "agent", stop: "agent_completed", timeout: false, rewards: { right: 1, brief: 0.5 }, metrics: { turns: 2, none: null } };
readline.createInterface({ input: process.stdin }).on("line", async (line) => {
  const { id, tasks, task, base_url, api_key, cancel } = JSON.parse(line);
  if (cancel) return send({ id, error: "the episode was stopped", kind: "Cancelled" });
  if (tasks !== undefined) {
    if (taskset.id === "missing") return send({ id, error: "taskset 'missing' not found", kind: "ModuleNotFoundError" });
    return send({ id, result: [0, 1].map((index) => ({ index, name: "task " + index, key: "same" })) });
  }
  if (taskset.id === "dies") { console.error("out of memory"); process.exit(3); }
  if (taskset.id === "waits") return;
  const response = await fetch(base_url + "/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json", authorization: "Bearer " + api_key },
    body: JSON.stringify({ model: "policy", messages: [{ role: "user", content: "task " + task + JSON.stringify({ seats, agent }) }] }),
  });
  await response.json();
  const fail = (type) => ({ ok: false, errors: [{ type, message: "broke" }], traces: [trace] });
  const results = {
    two: { ok: true, errors: [], traces: [trace, { ...trace, name: "judge" }] },
    unscored: { ok: true, errors: [], traces: [{ ...trace, rewards: { right: 1, brief: null } }] },
  };
  const result = taskset.id.endsWith("Error") ? fail(taskset.id) : (results[taskset.id] ?? { ok: true, errors: [], traces: [trace] });
  send({ id, result });
});
`,
  );
  chmodSync(python, 0o755);
});

const run = async (taskset: string, more: Partial<VerifiersOptions> = {}, timeoutSeconds = 10) => {
  const options = { taskset, python, ...more };
  const tasks = await verifiersTasks(options);
  const rows = [tasks.task(1).row];
  const workflow = verifiersEnvironment(options);
  const [episode] = await runWorkflow({ workflow, rows, reply: () => "yes", raiseOnError: false, timeoutSeconds });
  return episode!;
};

test("tasks are rows; the reward is the sum, and its parts and the metrics are metrics", async () => {
  const tasks = await verifiersTasks({ taskset: "plain", python });
  expect([0, 1].map((index) => tasks.task(index))).toMatchObject([
    { id: "plain/same-0", row: { index: 0, name: "task 0" } },
    { id: "plain/same-1", row: { index: 1, name: "task 1" } },
  ]);
  const episode = await run("plain", { env: { agent: { max_turns: 3 } } });
  expect(episode.trajectories).toMatchObject([{ reward: 1.5, steps: [{ text: "yes" }] }]);
  expect(episode.metrics).toMatchObject({ right: 1, brief: 0.5, turns: 2 });
  const seats = { harness: { id: "null" }, runtime: { type: "subprocess" } };
  const [message] = episode.trajectories[0]!.steps[0]!.messages;
  expect(message?.content).toBe(`task 1${JSON.stringify({ seats, agent: { max_turns: 3 } })}`);
});

test("a reward that was not computed makes the sum unknown", async () => {
  expect((await run("unscored")).trajectories).toMatchObject([{ reward: null }]);
});

test.each([
  ["SandboxError", { kind: "infrastructure" }],
  ["TaskError", { boundary: "reward" }],
  ["EnvError", { boundary: "environment" }],
  ["HarnessError", { boundary: "workflow" }],
])("%s is a failure of its part", async (taskset, failure) => {
  const episode = await run(taskset);
  expect(episode.failure).toMatchObject({ ...failure, message: expect.stringContaining(`${taskset}: broke`) });
});

test("a process that ends is named with its last lines, and the next rollout starts another", async () => {
  for (const _ of [1, 2]) {
    const { failure } = await run("dies");
    expect(failure).toMatchObject({
      kind: "infrastructure",
      message: expect.stringMatching(/exit code 3\n {2}out of memory/),
    });
  }
});

test("an episode ends with its rollout", async () => {
  expect((await run("waits", {}, 1)).termination).toBe("timeout");
});

test("mistakes are named", async () => {
  await expect(verifiersTasks({ taskset: "missing", python })).rejects.toThrow(/taskset 'missing' not found/);
  await expect(verifiersTasks({ taskset: "plain", python, harness: "bash" })).rejects.toThrow(/bash executes commands/);
  const rows = [{ index: 0, name: null }];
  const workflow = verifiersEnvironment({ taskset: "two", python });
  await expect(runWorkflow({ workflow, rows, reply: () => "x" })).rejects.toThrow(/played 2 parts .*agent, judge/);
});
