/** Agents that are separate programs or servers and call the gateway. */
// Slow: agents are programs, and one exceeds its time limit.

import { createServer, type Server } from "node:http";
import { afterEach, describe, expect, test } from "vitest";
import { listen } from "../base/http.ts";
import { isAlive } from "../base/processes.fixture.ts";
import { runWorkflow } from "../testing/scripted.ts";
import { commandAgent, type ExternalJob, externalAgent } from "./programs.ts";
import type { Workflow } from "./types.ts";

interface Row {
  word: string;
}
const rows: Row[] = [{ word: "one" }, { word: "two" }];
const echo = (messages: { content: string }[]) => `re: ${messages.at(-1)!.content}`;
const run = (workflow: Workflow<Row>, more: object = {}) => runWorkflow({ workflow, rows, reply: echo, ...more });

/** A program that calls the model with only the variables of its environment. */
const program = (then: string) => `
  const row = JSON.parse(process.env.HONE_TASK);
  const response = await fetch(process.env.OPENAI_BASE_URL + "/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json", authorization: "Bearer " + process.env.OPENAI_API_KEY },
    body: JSON.stringify({ model: "m", messages: [{ role: "user", content: row.word }] }),
  });
  const said = (await response.json()).choices[0].message.content;
  ${then}`;
const node = (source: string): [string, ...string[]] => [process.execPath, "--input-type=module", "-e", source];

describe("a program", () => {
  test("calls the model as its rollout, and its last line is the reward", async () => {
    const source = program(
      'console.log("thinking"); console.log(JSON.stringify({ reward: said.length, correct: true }));',
    );
    const episodes = await run(commandAgent<Row>({ command: node(source) }), { timeoutSeconds: 60 });
    expect(episodes).toMatchObject([
      { correct: true, trajectories: [{ reward: 7, steps: [{ messages: [{ content: "one" }], text: "re: one" }] }] },
      { correct: true, trajectories: [{ reward: 7, steps: [{ messages: [{ content: "two" }], text: "re: two" }] }] },
    ]);
  });

  test("reads its task from its input, and is graded by the workflow", async () => {
    const source = `for await (const line of process.stdin) process.stdout.write(JSON.parse(line).word);`;
    const reward = (row: Row, { output, exitCode }: { output: string; exitCode: number }) =>
      exitCode === 0 && output === row.word ? 1 : 0;
    const episodes = await run(commandAgent<Row>({ command: node(source), reward }), { timeoutSeconds: 60 });
    expect(episodes.map(({ trajectories }) => trajectories[0]!.reward)).toEqual([1, 1]);
  });

  test.each([
    [
      "ends with a code other than 0",
      node("process.exit(3)"),
      /ended with exit code 3 and wrote nothing to standard error/,
    ],
    ["says nothing", node(""), /not a number or an object with a reward/],
    ["is missing", ["./no-such-program"] as [string], /cannot be started/],
  ])("that %s has failed", async (_, command, message) => {
    const [episode] = await run(commandAgent<Row>({ command }), {
      rows: rows.slice(0, 1),
      raiseOnError: false,
      timeoutSeconds: 60,
    });
    expect(episode!.failure?.message).toMatch(message);
  });

  test("that crashes is a failure of the agent, with its command, exit code and the end of its standard error", async () => {
    const log: string[] = [];
    const source = program(`
      for (let line = 0; line < 30; line++) console.error("line " + line);
      process.stderr.write("Traceback: KeyError \\u001b[31m'answer'");
      process.exitCode = 1;`);
    const options = {
      rows: rows.slice(0, 1),
      raiseOnError: false,
      timeoutSeconds: 60,
      log: (text: string) => log.push(text),
    };
    const [episode] = await run(commandAgent<Row>({ command: node(source) }), options);
    expect(episode!.failure).toMatchObject({ kind: "agent", boundary: "workflow" });
    const { message } = episode!.failure!;
    expect(message).toMatch(
      /^agent threw Error: \S+ --input-type=module -e [\s\S]* ended with exit code 1; its standard error ends with\n/,
    );
    expect(message).toMatch(/\n {2}line 29\n {2}Traceback: KeyError .*'answer'$/);
    expect(message).not.toContain("line 10\n");
    expect(log.length).toBe(31);
    expect(log.slice(0, 2)).toEqual(["stderr: line 0", "stderr: line 1"]);
  });

  test("that crashes because the engine failed is a failure of the infrastructure", async () => {
    const source = program("throw new Error(said)").replace(
      "(await response.json()).choices[0].message.content",
      "(await response.json()).error.message",
    );
    const [episode] = await run(commandAgent<Row>({ command: node(source) }), {
      ...{ rows: rows.slice(0, 1), raiseOnError: false, timeoutSeconds: 60 },
      reply: () => Promise.reject(new Error("out of memory")),
    });
    expect(episode!.failure).toMatchObject({ kind: "infrastructure", message: "model call 1 failed: out of memory" });
  });

  test("is graded by a reward that reads its exit code, and the code is counted", async () => {
    const reward = (_: Row, { exitCode }: { exitCode: number }) => (exitCode === 0 ? 1 : 0);
    const [episode] = await run(commandAgent<Row>({ command: node("process.exit(3)"), reward }), {
      timeoutSeconds: 60,
    });
    expect(episode).toMatchObject({ metrics: { nonzero_exits: 1 }, trajectories: [{ reward: 0 }] });
  });

  test.each(["sleep 60 & echo 1", "setsid sleep 20 & echo 1"])(
    "is not awaited longer than it runs: %s",
    async (script) => {
      const start = performance.now();
      const [episode] = await run(commandAgent<Row>({ command: ["sh", "-c", script] }), { rows: rows.slice(0, 1) });
      expect(episode!.failure).toBeUndefined();
      expect(performance.now() - start).toBeLessThan(8000);
    },
  );

  test("gets the named fields of the row and a few variables, not the answer or this process's secrets", async () => {
    process.env.SOME_API_KEY = "secret of this process";
    const rows = [{ word: "one", answer: "hidden" }];
    const source = `let text = JSON.stringify(process.env);
      for await (const line of process.stdin) text += line;
      console.log(text);`;
    const outputs: string[] = [];
    const workflow = commandAgent<(typeof rows)[0]>({
      command: node(source),
      task: ({ word }) => ({ word }),
      env: { MODE: "fast" },
      reward: (_row, { output }) => outputs.push(output),
    });
    await runWorkflow({ workflow, rows, reply: echo });
    delete process.env.SOME_API_KEY;
    expect(outputs.join()).toContain('"MODE":"fast"');
    expect(outputs.join()).toContain('{"word":"one"}');
    expect(outputs.join()).not.toMatch(/hidden|secret of this process/);
  });

  test.each([
    "setsid sh -c 'sleep 0.5; echo 1' & echo 0",
    "setsid sh -c 'while true; do echo 1; sleep 0.01; done' & sleep 0.1; echo 0; exit 0",
    "(sleep 0.5; echo 1) & echo 0",
  ])("has its own last line as result, not one of a process that outlives it: %s", async (script) => {
    const [episode] = await run(commandAgent<Row>({ command: ["sh", "-c", script] }), { rows: rows.slice(0, 1) });
    // What runs at the same time can write before the agent ends.
    if (!script.includes("while")) expect(episode!.trajectories[0]!.reward).toBe(0);
    await new Promise((resolve) => setTimeout(resolve, 200));
  });

  test("that kills itself is a failure of the agent, which is not retried for free", async () => {
    const [episode] = await run(commandAgent<Row>({ command: ["sh", "-c", "kill -9 $$"] }), {
      ...{ rows: rows.slice(0, 1), raiseOnError: false },
    });
    expect(episode!.failure).toMatchObject({ kind: "agent", message: expect.stringContaining("was ended by SIGKILL") });
    expect(episode!.retries).toBe(0);
  });

  test("is killed with all its child processes when its time is up", async () => {
    const source = `
      import { spawn } from "node:child_process";
      const child = spawn(process.execPath, ["-e", "setInterval(() => {}, 1000)"]);
      process.stderr.write("");
      await fetch(process.env.OPENAI_BASE_URL + "/chat/completions", {
        method: "POST", headers: { "content-type": "application/json" },
        body: JSON.stringify({ messages: [{ role: "user", content: String(child.pid) }] }) });
      setInterval(() => {}, 1000);`;
    const [episode] = await run(commandAgent<Row>({ command: node(source) }), {
      rows: rows.slice(0, 1),
      raiseOnError: false,
      timeoutSeconds: 5,
    });
    expect(episode).toMatchObject({ termination: "timeout" });
    const pid = Number(episode!.trajectories[0]!.steps[0]!.messages[0]!.content);
    await expect.poll(() => isAlive(pid), { timeout: 5000 }).toBe(false);
  });
});

describe("a server", () => {
  let server: Server | undefined;
  afterEach(() => server?.close());

  async function serve(answer: (job: ExternalJob<Row>) => Promise<{ status: number; body: unknown }>): Promise<string> {
    server = createServer(async (request, response) => {
      let text = "";
      for await (const chunk of request) text += chunk;
      const { status, body } = await answer(JSON.parse(text));
      response.writeHead(status).end(JSON.stringify(body));
    });
    return await listen(server);
  }

  const solve = async ({ base_url, api_key, task }: ExternalJob<Row>) => {
    const response = await fetch(`${base_url}/chat/completions`, {
      method: "POST",
      headers: { "content-type": "application/json", authorization: `Bearer ${api_key}` },
      body: JSON.stringify({ messages: [{ role: "user", content: task.word }] }),
    });
    return response.status;
  };

  test("answers with its result at once", async () => {
    const url = await serve(async (job) => ({ status: 200, body: { reward: (await solve(job)) / 200 } }));
    const episodes = await run(externalAgent<Row>({ url }));
    expect(episodes.map(({ trajectories }) => [trajectories[0]!.reward, trajectories[0]!.steps.length])).toEqual([
      [1, 1],
      [1, 1],
    ]);
  });

  test("posts its result later", async () => {
    const url = await serve(async (job) => {
      setTimeout(async () => {
        const status = await solve(job);
        await fetch(job.result_url, {
          method: "POST",
          headers: { "content-type": "application/json" },
          body: JSON.stringify({ reward: status / 100, correct: true }),
        });
      }, 20);
      return { status: 202, body: {} };
    });
    const episodes = await run(externalAgent<Row>({ url }));
    expect(episodes).toMatchObject([
      { correct: true, trajectories: [{ reward: 2 }] },
      { correct: true, trajectories: [{ reward: 2 }] },
    ]);
  });

  test("gets the named fields, and only the address of its result takes one, once", async () => {
    const statuses: number[] = [];
    const jobs: ExternalJob[] = [];
    const url = await serve(async (job) => {
      jobs.push(job);
      setTimeout(async () => {
        const post = async (address: string, reward: number) =>
          statuses.push((await fetch(address, { method: "POST", body: JSON.stringify({ reward }), headers })).status);
        const headers = { "content-type": "application/json", authorization: `Bearer ${job.api_key}` };
        await post(`${job.anthropic_base_url}/result`, 9);
        await post(`${job.result_url.slice(0, -4)}AAAA`, 9);
        await post(job.result_url.replace(/[^/]*$/, job.api_key), 9);
        await post(job.result_url, 1);
      }, 20);
      return { status: 202, body: {} };
    });
    const [episode] = await run(externalAgent<Row>({ url, task: ({ word }) => ({ length: word.length }) }), {
      rows: rows.slice(0, 1),
    });
    expect(episode!.trajectories[0]!.reward).toBe(1);
    expect(jobs[0]!.task).toEqual({ length: 3 });
    await expect.poll(() => statuses).toEqual([404, 404, 404, 200]);
  });

  test("that refuses a job fails with its own message", async () => {
    const url = await serve(async () => ({ status: 503, body: "busy" }));
    const [episode] = await run(externalAgent<Row>({ url }), { rows: rows.slice(0, 1), raiseOnError: false });
    expect(episode!.failure?.message).toMatch(/answered 503: "busy"/);
  });
});
