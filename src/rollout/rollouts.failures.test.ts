// Own process: it reads stack traces.
import { setTimeout as sleep } from "node:timers/promises";
import { describe, expect, test } from "vitest";
import type { Workflow } from "../agents/types.ts";
import { singleTurn } from "../agents/workflows.ts";
import { RunError, UserError } from "../base/errors.ts";
import type { Script } from "../testing/scripted.ts";
import type { Failure } from "../trajectories/types.ts";
import { type Row, rewards, type Settings, setUp, tasksOf } from "./run-rollouts.fixture.ts";

describe("failures", () => {
  const thrower = (value: unknown): never => {
    throw value;
  };
  const single = (parts: { prompt?: () => string; reward?: () => unknown }) =>
    singleTurn<Row>({ prompt: (row) => row.word, ...parts, reward: (parts.reward ?? (() => 1)) as () => number });

  test.each<[string, Settings, Pick<Failure, "kind" | "boundary">, string, typeof UserError | typeof RunError, number]>(
    [
      [
        "a reward that throws",
        { workflow: single({ reward: () => thrower(new TypeError("no column")) }) },
        { kind: "reward", boundary: "reward" },
        "reward threw TypeError: no column",
        RunError,
        0,
      ],
      [
        "a reward that throws no Error",
        { workflow: single({ reward: () => thrower("oops") }) },
        { kind: "reward", boundary: "reward" },
        "reward threw a value that is not an Error: oops",
        RunError,
        0,
      ],
      [
        "a reward that rejects",
        { workflow: single({ reward: () => Promise.reject(new Error("judge down")) }) },
        { kind: "reward", boundary: "reward" },
        "reward threw Error: judge down",
        RunError,
        0,
      ],
      [
        "a reward whose request fails",
        {
          workflow: single({ reward: () => thrower(new TypeError("fetch failed", { cause: new Error("bad port") })) }),
        },
        { kind: "reward", boundary: "reward" },
        "reward threw TypeError: fetch failed: bad port",
        RunError,
        0,
      ],
      [
        "a reward of NaN",
        { workflow: single({ reward: () => Number.NaN }) },
        { kind: "reward", boundary: "reward" },
        "reward returned NaN; a reward must be a finite number",
        UserError,
        0,
      ],
      [
        "a reward of nothing",
        { workflow: single({ reward: () => undefined }) },
        { kind: "reward", boundary: "reward" },
        "reward returned undefined; a reward must be a finite number",
        UserError,
        0,
      ],
      [
        "a prompt that throws",
        { workflow: single({ prompt: () => thrower(new Error("no row")) }) },
        { kind: "agent", boundary: "workflow" },
        "prompt threw Error: no row",
        RunError,
        2,
      ],
      [
        "a prompt of nothing",
        { workflow: single({ prompt: () => undefined as never }) },
        { kind: "agent", boundary: "workflow" },
        "prompt: prompt(row) returned undefined instead of a message's text",
        UserError,
        0,
      ],
      [
        "a workflow that throws",
        { workflow: () => thrower(new Error("lost")) },
        { kind: "agent", boundary: "workflow" },
        "workflow threw Error: lost",
        RunError,
        2,
      ],
      [
        "a workflow's NaN",
        { workflow: () => Number.NaN },
        { kind: "agent", boundary: "workflow" },
        "workflow returned NaN",
        UserError,
        0,
      ],
      [
        "an engine that fails",
        { reply: () => thrower(new Error("out of memory")) },
        { kind: "infrastructure", boundary: "engine" },
        "model call 1 failed: out of memory",
        RunError,
        2,
      ],
    ],
  )("%s", async (_name, settings, failure, message, Thrown, retries) => {
    const { run } = setUp(settings);
    const episodes = await run({ tasks: tasksOf("one"), n: 1, retryLimit: 2 });
    expect(episodes).toMatchObject([{ termination: "error", retries, correct: null, failure }]);
    expect(episodes[0]!.failure!.message).toContain(message);
    // The reply was sampled, so it is recorded; its reward is unknown, not 0.
    for (const trajectory of episodes[0]!.trajectories) expect(trajectory.reward).toBeNull();
    expect(episodes[0]!.trajectories.length).toBe(failure.boundary === "reward" ? 1 : 0);

    const error = await run({ tasks: tasksOf("zero", "one").slice(1), n: 1, raiseOnError: true, retryLimit: 1 }).catch(
      (thrown) => thrown,
    );
    expect(error.name).toBe(Thrown.name);
    const tries = retries === 0 ? "" : " after 1 retry";
    expect(error.message).toContain(`rollout 0 of task one (train.jsonl:2) failed${tries}: `);
    expect(error.message).toContain(message);
    expect(error.hint).toContain("rllm.workflow.raise_on_error=false");
  });

  test("the error shows where in the user's own files it was thrown", async () => {
    const error = await setUp({ workflow: single({ reward: () => thrower(new Error("here")) }) })
      .run({ raiseOnError: true })
      .catch((thrown) => thrown);
    expect(error.message).toMatch(/\n\s+at .*rollouts\.failures\.test\.ts/);
    expect(error.message).not.toContain("node_modules");
    expect(error.cause.message).toBe("here");
  });

  test("a retry starts from the beginning, samples again and is counted", async () => {
    const seeds: number[] = [];
    const retries: unknown[] = [];
    let left = 2;
    const workflow: Workflow<Row> = async (_task, { model }) => {
      await model.chat([{ role: "user", content: "a" }]);
      if (left-- > 0) throw new RunError("flaky");
      return 1;
    };
    const { run } = setUp({ workflow, watch: (requests) => seeds.push(...requests.map(({ params }) => params.seed)) });
    const [episode] = await run({
      ...{ tasks: tasksOf("one"), n: 1, retryLimit: 3, raiseOnError: true },
      onRetry: ({ failure, ...retry }) => retries.push({ ...retry, message: failure.message }),
    });
    expect(episode).toMatchObject({ retries: 2, termination: "env_done" });
    expect(episode!.trajectories[0]!.steps.length).toBe(1);
    expect(new Set(seeds).size).toBe(3);
    expect(retries).toEqual(
      [0, 1].map((attempt) => ({ taskId: "one", rollout: 0, attempt, message: "workflow: flaky" })),
    );
  });

  test("a mistake that the user must fix is not retried, and is reported without stack frames", async () => {
    let attempts = 0;
    const workflow: Workflow<Row> = () => {
      attempts++;
      throw new UserError("the chat template does not support tools", { hint: "offer none" });
    };
    const { run } = setUp({ workflow, retryLimit: 3 });
    const error = await run({ tasks: tasksOf("one"), n: 1, raiseOnError: true }).catch((thrown) => thrown);
    expect(error.message).toBe(
      "rollout 0 of task one (train.jsonl:1) failed: workflow: the chat template does not support tools",
    );
    expect(error).toMatchObject({ exitCode: 2, hint: expect.stringContaining("offer none") });
    expect(attempts).toBe(1);
    const transient: Workflow<Row> = () => {
      attempts++;
      throw new RunError("the server is busy");
    };
    const [episode] = await run({ tasks: tasksOf("one"), n: 1, workflow: transient });
    expect([attempts, episode!.retries]).toEqual([5, 3]);
  });

  test("a fatal error of the engine ends the run with the engine's message", async () => {
    const death = new RunError("the worker died", { hint: "look into the log" });
    let calls = 0;
    const { run } = setUp({ reply: () => thrower(death), watch: () => calls++ });
    await expect(run({ retryLimit: 5 })).rejects.toBe(death);
    expect(calls).toBe(1);
  });

  test("after the first failure no rollout is started, and running ones are stopped", async () => {
    let started = 0;
    let stopped = 0;
    const workflow: Workflow<Row> = async (task, { signal }) => {
      started++;
      if (task.id === "one") throw new Error("first");
      signal.addEventListener("abort", () => stopped++);
      return new Promise(() => {});
    };
    await expect(setUp({ workflow }).run({ n: 1, nParallelTasks: 2, raiseOnError: true })).rejects.toThrow("first");
    expect([started, stopped]).toEqual([2, 1]);
  });
});

describe("time and stopping", () => {
  test("an attempt over its time is a timeout that says what it waited for; the model call is cancelled", async () => {
    let cancelled = 0;
    const reply: Script = () => new Promise(() => {});
    const { run, client } = setUp({
      reply,
      watch: (requests) => requests[0]!.signal!.addEventListener("abort", () => cancelled++),
    });
    const episodes = await run({
      tasks: tasksOf("one"),
      n: 1,
      timeoutSeconds: 0.2,
      retryLimit: 3,
      raiseOnError: true,
    });
    expect(episodes).toMatchObject([
      {
        termination: "timeout",
        retries: 0,
        failure: { boundary: "timeout", message: "the attempt took longer than 0.2 s; it was waiting for the model" },
      },
    ]);
    expect(cancelled).toBe(1);
    expect(client.waitingFor()).toEqual([]);
  });

  test("a workflow that ignores its signal does not block the run, and can no longer call the model", async () => {
    let late: Promise<unknown> | undefined;
    const workflow: Workflow<Row> = async (_task, { model, stage }) => {
      stage("search");
      await sleep(30);
      late = model.chat([{ role: "user", content: "a" }]);
      return late.then(() => 1);
    };
    const episodes = await setUp({ workflow }).run({ tasks: tasksOf("one"), n: 1, timeoutSeconds: 0.01 });
    expect(episodes[0]!.failure!.message).toContain("waiting for search");
    while (!late) await sleep(5);
    await expect(late).rejects.toThrow("after the rollout had ended");
  });

  test("a limit longer than the longest timer is ignored", async () => {
    const episodes = await setUp({}).run({ timeoutSeconds: 1e9 });
    expect(rewards(episodes).flat()).toEqual([1, 1, 1, 1, 1, 1]);
  });

  test("the run's signal stops everything with its reason", async () => {
    const abort = new AbortController();
    const { run, client } = setUp({ reply: () => new Promise(() => {}) });
    const running = run({ signal: abort.signal });
    await sleep(5);
    expect(client.waitingFor().length).toBe(6);
    abort.abort(new Error("Ctrl-C"));
    await expect(running).rejects.toThrow("Ctrl-C");
    expect(client.waitingFor()).toEqual([]);
    await expect(run({ signal: abort.signal })).rejects.toThrow("Ctrl-C");
  });

  test("the waiting list names each live rollout, its wait and its age, the longest first", async () => {
    let release = () => {};
    const gate = new Promise<void>((resolve) => (release = resolve));
    const workflow: Workflow<Row> = async (task, { model, stage }) => {
      if (task.id === "two") {
        await sleep(20);
        stage("reward");
        await gate;
      }
      await model.chat([{ role: "user", content: "a" }]);
      return 1;
    };
    const reply: Script = async () => {
      await gate;
      return "b";
    };
    const { run, client } = setUp({ workflow, reply });
    const running = run({ tasks: tasksOf("one", "two"), n: 1 });
    await sleep(60);
    const waiting = client.waitingFor();
    expect(waiting).toMatchObject([
      { taskId: "one", rollout: 0, what: "the model" },
      { taskId: "two", rollout: 0, what: "reward" },
    ]);
    expect(waiting[0]!.seconds).toBeGreaterThan(waiting[1]!.seconds);
    expect(waiting[0]!.seconds).toBeLessThan(5);
    release();
    await running;
  });
});
