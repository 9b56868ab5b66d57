import { setTimeout as sleep } from "node:timers/promises";
import { describe, expect, test, vi } from "vitest";
import type { Workflow } from "../agents/types.ts";
import type { ChatMessage } from "../chat/messages.ts";
import { startPhases } from "./rollouts.ts";
import { type Row, setUp, tasksOf } from "./run-rollouts.fixture.ts";

const one = { tasks: tasksOf("one"), n: 1 };
const forever = () => new Promise<never>(() => {});

const hangIn =
  (name: string): Workflow<Row> =>
  (_, { stage }) => {
    stage(name);
    return forever();
  };

describe("phases", () => {
  test.each<[string, Workflow<Row>, string, string]>([
    ["set-up", hangIn("set-up"), "its set-up took longer than 0.02 s; it was waiting for set-up", "infrastructure"],
    ["run", hangIn("search"), "its run took longer than 0.03 s; it was waiting for search", "agent"],
    ["reward", hangIn("reward"), "its reward took longer than 0.04 s; it was waiting for reward", "reward"],
  ])("%s has a limit of its own", async (_name, workflow, message, kind) => {
    const limits = { setUpSeconds: 0.02, runSeconds: 0.03, scoreSeconds: 0.04 };
    const [episode] = await setUp({ workflow }).run({ ...one, limits });
    expect(episode).toMatchObject({ termination: "timeout", failure: { boundary: "timeout", kind, message } });
  });

  test("limits are independent, and the run's limit covers all of its stages together", () => {
    vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "performance"] });
    try {
      const met: string[] = [];
      const phases = startPhases(
        { setUpSeconds: 10, runSeconds: 10, scoreSeconds: 10, totalSeconds: 100 },
        (message) => {
          met.push(message);
        },
      );
      for (const stage of ["set-up", "search", "reward"]) {
        phases.enter(stage);
        vi.advanceTimersByTime(9000);
      }
      phases.enter("write");
      vi.advanceTimersByTime(900);
      expect(met).toEqual([]);
      vi.advanceTimersByTime(100);
      expect(met).toEqual(["its run took longer than 10 s"]);
      phases.end();
      vi.advanceTimersByTime(200_000);
      expect(met.length).toBe(1);
    } finally {
      vi.useRealTimers();
    }
  });
});

describe("tear-down", () => {
  const order: string[] = [];
  const registering =
    (rest: (context: Parameters<Workflow<Row>>[1]) => Promise<number>): Workflow<Row> =>
    async (_, context) => {
      order.length = 0;
      context.tearDown(() => void order.push("first"));
      context.tearDown(async () => void order.push("second"));
      return rest(context);
    };

  test.each<[string, Workflow<Row>, object]>([
    ["success", registering(async () => 1), { termination: "env_done" }],
    ["an error", registering(() => Promise.reject(new Error("no"))), { termination: "error" }],
    ["a time-out", registering(forever), { termination: "timeout" }],
    [
      "a prompt that is too long",
      registering(async ({ model }) => Number(await model.chat([{ role: "user", content: "x".repeat(200) }]))),
      { termination: "max_prompt_length_exceeded" },
    ],
  ])("is done after %s, the last registered first", async (_name, workflow, expected) => {
    const [episode] = await setUp({ workflow }).run({ ...one, timeoutSeconds: 0.05 });
    expect(episode).toMatchObject(expected);
    expect(order).toEqual(["second", "first"]);
  });

  test("is done when the run is stopped, before the run rejects", async () => {
    const abort = new AbortController();
    const running = setUp({ workflow: registering(forever) }).run({ ...one, signal: abort.signal });
    await sleep(5);
    abort.abort(new Error("Ctrl-C"));
    await expect(running).rejects.toThrow("Ctrl-C");
    expect(order).toEqual(["second", "first"]);
  });

  test("its errors and time-outs are reported and counted, and do not change the reward", async () => {
    const workflow: Workflow<Row> = async (_, { tearDown }) => {
      tearDown(forever);
      tearDown(() => {
        throw new TypeError("not open");
      });
      return 1;
    };
    const problems: string[] = [];
    const [episode] = await setUp({ workflow }).run({
      ...{ ...one, limits: { tearDownSeconds: 0.02 } },
      onTearDownProblem: ({ message }) => problems.push(message),
    });
    expect(problems).toEqual([
      "threw TypeError: not open",
      "took longer than 0.02 s; the run did not wait for its end",
    ]);
    expect(episode).toMatchObject({ metrics: { tear_down_problems: 2 }, trajectories: [{ reward: 1 }] });
  });

  test("what is set up after the end is torn down at once", async () => {
    let closed = false;
    const workflow: Workflow<Row> = async (_, { tearDown }) => {
      await sleep(30);
      tearDown(() => {
        closed = true;
      });
      return 1;
    };
    await setUp({ workflow }).run({ ...one, timeoutSeconds: 0.01 });
    await sleep(50);
    expect(closed).toBe(true);
  });
});

/** Echoes, turn after turn, until something ends it. */
const endless =
  (budget: "reply" | "conversation"): Workflow<Row> =>
  async (_, { model }) => {
    const messages: ChatMessage[] = [{ role: "user", content: "abcd" }];
    for (;;) {
      const reply = await model.chat(messages, { budget });
      messages.push(reply.message, { role: "user", content: "abcd" });
    }
  };

describe("turns", () => {
  test("max_steps limits the model calls of each role separately", async () => {
    const [episode] = await setUp({ workflow: endless("reply") }).run({ ...one, maxSteps: 3 });
    expect(episode).toMatchObject({
      termination: "max_turns_exceeded",
      explanation: '"agent" has made 3 model calls, the limit of rllm.agent.max_steps',
    });
    expect(episode!.failure).toBeUndefined();
    expect(episode!.trajectories).toMatchObject([{ steps: [{}, {}, {}], reward: null }]);
    const both: Workflow<Row> = async (_, { model }) => {
      for (const role of ["a", "b", "a", "b"]) await model.as(role).chat([{ role: "user", content: "x" }]);
      return 1;
    };
    expect(await setUp({ workflow: both }).run({ ...one, maxSteps: 2 })).toMatchObject([{ termination: "env_done" }]);
  });

  test("a conversation's budget covers everything after its first prompt", async () => {
    // A turn is 5 sampled tokens and 7 of the next question: 12 a turn.
    const run = (maxResponseLength: number) =>
      setUp({ workflow: endless("conversation"), limits: { maxResponseLength } }).run(one);
    const [even] = await run(24);
    expect(even).toMatchObject({
      termination: "max_response_length_exceeded",
      explanation: expect.stringContaining("24 tokens since the first prompt"),
    });
    expect(even!.trajectories[0]!.steps.length).toBe(2);
    const [cut] = await run(26);
    expect(cut!.trajectories[0]!.steps.map(({ text }) => text)).toEqual(["abcd", "abcd", "ab"]);
  });
});

test("instances of a role are separate trajectories, rewarded by number or together", async () => {
  const workflow: Workflow<Row> = async (_, { model }) => {
    for (const instance of [1, 2, 1])
      await model.as("solver", instance).chat([{ role: "user", content: `${instance}` }]);
    return { reward: 0, rewards: { solver: 0.5, "solver#2": 1 }, stepRewards: { "solver#1": [0.25, null] } };
  };
  const [episode] = await setUp({ workflow }).run(one);
  expect(episode!.trajectories).toMatchObject([
    {
      name: "solver",
      instance: 1,
      reward: 0.5,
      steps: [
        { text: "1", reward: 0.25 },
        { text: "1", reward: null },
      ],
    },
    { name: "solver", instance: 2, reward: 1, steps: [{ text: "2", reward: null }] },
  ]);
});

test("step rewards are shaped: first the bonus, then the discount from the end", async () => {
  const workflow: Workflow<Row> = async (_, { model }) => {
    for (const _turn of [1, 2, 3]) await model.chat([{ role: "user", content: "x" }]);
    return { reward: 7, stepRewards: { agent: [1, 0, 2] } };
  };
  const [episode] = await setUp({ workflow }).run({ ...one, shaping: { rewardBonus: 0.5, gamma: 0.5 } });
  // Bonus: 1, 0 - 0.5, 2 + 1; discount: 3, -0.5 + 1.5, 1 + 0.5.
  expect(episode!.trajectories[0]).toMatchObject({ reward: 7, steps: [{ reward: 1.5 }, { reward: 1 }, { reward: 3 }] });
});

test("each rollout has its own random draws, the same in a repeated run", async () => {
  const drawn: number[] = [];
  const workflow: Workflow<Row> = (_, { random }) => {
    drawn.push(random());
    return 1;
  };
  const { run } = setUp({ workflow });
  await run({ seed: 1 });
  await run({ seed: 1 });
  await run({ seed: 2 });
  expect(drawn.slice(0, 6)).toEqual(drawn.slice(6, 12));
  expect(new Set(drawn).size).toBe(12);
});
