import { describe, expect, expectTypeOf, test } from "vitest";
import { z } from "zod";
import type { ChatMessage } from "../chat/messages.ts";
import { mathAnswer } from "../rewards/index.ts";
import { firstInteger } from "../rewards/text.ts";
import { runWorkflow, type Script } from "../testing/scripted.ts";
import { defineTool, type UseToolsOptions, useTools } from "./tools.ts";
import type { Agent, Environment, Outcome, Reply, Workflow } from "./types.ts";
import { chatAgent, cumulative, multiTurn, singleTurn, solverJudge } from "./workflows.ts";

describe("workflows", () => {
  interface Row {
    question: string;
    answer: number;
  }
  const rows: Row[] = [{ question: "6 * 7?", answer: 42 }];

  /** Counts down from n; done at 0. */
  function counter(n: number, closed: number[] = []): Environment {
    let left = n;
    return {
      reset: () => `${left} left`,
      step: () => ({ observation: `${--left} left`, reward: 0.5, done: left === 0, metrics: { left } }),
      close: () => void closed.push(left),
    };
  }

  describe("multiTurn", () => {
    test("turns until the environment is done; the reward is the sum, each step keeps its own", async () => {
      const closed: number[] = [];
      const seen: string[] = [];
      const [episode] = await runWorkflow({
        workflow: multiTurn<number>({
          environment: (task) => counter(task.row, closed),
          agent: () => chatAgent({ system: "Count." }),
        }),
        rows: [3],
        reply: (messages) => {
          seen.push(messages.map(({ content }) => content).join(" | "));
          return "tick";
        },
      });
      expect(seen.at(-1)).toBe("Count. | 3 left | tick | 2 left | tick | 1 left");
      expect(episode).toMatchObject({
        termination: "env_done",
        metrics: { turns: 3, left: 0 },
        trajectories: [{ reward: 1.5, steps: [{ reward: 0.5 }, { reward: 0.5 }, { reward: 0.5 }] }],
      });
      // One conversation is one token sequence: no step after the first one starts a new sequence.
      expect(episode!.trajectories[0]!.steps.map(({ starts }) => starts)).toEqual([
        "new_conversation",
        undefined,
        undefined,
      ]);
      expect(closed).toEqual([0]);
    });

    test.each<[string, object, object, string, number]>([
      ["turns", { maxSteps: 2 }, {}, "max_turns_exceeded", 1],
      ["prompt", {}, { maxPromptLength: 40 }, "max_prompt_length_exceeded", 1.5],
      ["response", {}, { maxResponseLength: 3 }, "max_response_length_exceeded", 0.5],
    ])(
      "a limit of %s ends the conversation and keeps its rewards",
      async (_name, options, limits, termination, reward) => {
        const workflow = multiTurn<number>({ environment: () => counter(9), ...options });
        const [episode] = await runWorkflow({ workflow, rows: [0], reply: () => "tick", ...limits });
        expect(episode).toMatchObject({ termination, correct: false, trajectories: [{ reward }] });
        expect(episode!.failure).toBeUndefined();
      },
    );

    test("a reply that its own limit cuts off does not end the conversation", async () => {
      const workflow = multiTurn<number>({ environment: () => counter(2), params: { maxTokens: 2 } });
      expect(await runWorkflow({ workflow, rows: [0], reply: () => "tick" })).toMatchObject([
        { termination: "env_done" },
      ]);
    });

    test("cumulative: all turns share the response's budget", async () => {
      const workflow = cumulative<number>({ environment: () => counter(9) });
      const [episode] = await runWorkflow({ workflow, rows: [0], reply: () => "tick", maxResponseLength: 30 });
      expect(episode).toMatchObject({ termination: "max_response_length_exceeded" });
      expect(episode!.trajectories[0]!.steps.length).toBe(3);
    });

    test("a custom agent with its own actions", async () => {
      const upper = (): Agent<string> => {
        const chat = chatAgent();
        return { messages: chat.messages, observe: chat.observe, act: (reply) => chat.act(reply).text.toUpperCase() };
      };
      const heard: string[] = [];
      const shouting: Environment<string> = {
        reset: () => "say",
        step: (action) => ({ observation: "", reward: heard.push(action), done: true }),
        score: () => ({ reward: 7, correct: true, explanation: "loud" }),
      };
      const workflow = multiTurn<number, string>({ environment: () => shouting, agent: upper });
      const [episode] = await runWorkflow({ workflow, rows: [0], reply: () => "hey" });
      expect(heard).toEqual(["HEY"]);
      expect(episode).toMatchObject({
        correct: true,
        explanation: "loud",
        trajectories: [{ reward: 7, steps: [{ reward: 1 }] }],
      });
      // @ts-expect-error: without an agent, actions are replies
      multiTurn<number, string>({ environment: () => shouting });
    });

    test.each<[string, Partial<Environment>, string, string]>([
      ["step", { step: () => Promise.reject(new Error("crash")) }, "environment", "environment threw Error: crash"],
      ["reset", { reset: () => Promise.reject(new Error("no boot")) }, "set_up", "set-up threw Error: no boot"],
      [
        "reset of nothing",
        { reset: () => undefined as never },
        "set_up",
        "set-up gave the observation undefined; it must be a text or a list of messages",
      ],
      [
        "step of nothing",
        { step: () => undefined as never },
        "environment",
        "environment returned undefined (is a return or an await missing?); a step is { observation, reward, done }",
      ],
      [
        "step of an odd reward",
        { step: () => ({ observation: "", reward: true as never, done: true }) },
        "environment",
        "environment returned the reward true; it must be a finite number, or null",
      ],
      [
        "step that does not say whether it is done",
        { step: () => ({ observation: "go on", reward: 0 }) as never },
        "environment",
        "environment returned done: undefined; it must be true or false",
      ],
      ["score", { score: () => Promise.reject(new Error("no score")) }, "reward", "reward threw Error: no score"],
    ])(
      "an environment whose %s fails is a failure of its own kind, and is closed",
      async (_name, broken, boundary, message) => {
        const closed: number[] = [];
        const workflow = multiTurn<number>({ environment: () => ({ ...counter(1, closed), ...broken }) });
        const [episode] = await runWorkflow({ workflow, rows: [0], reply: () => "tick", raiseOnError: false });
        expect(episode).toMatchObject({
          termination: "error",
          failure: { boundary, message: expect.stringContaining(message) },
        });
        for (const { reward } of episode!.trajectories) expect(reward).toBeNull();
        expect(closed.length).toBe(1);
      },
    );
  });

  const multiply = defineTool({
    name: "multiply",
    description: "Multiplies.",
    parameters: { a: z.number(), b: z.number() },
    run: ({ a, b }) => {
      if (b === 0) throw new Error("too easy");
      return { product: a * b };
    },
  });
  const call = (name: string, args: object) =>
    `<tool_call>\n${JSON.stringify({ name, arguments: args })}\n</tool_call>`;

  /** Plays the replies one after another and keeps what the model saw last. */
  function play(...replies: string[]): { reply: Script; heard: string[] } {
    const heard: string[] = [];
    let turn = 0;
    return {
      heard,
      reply: (messages) => {
        heard.push(messages.at(-1)!.content);
        return replies[turn++]!;
      },
    };
  }

  describe("useTools", () => {
    const options: UseToolsOptions<Row> = {
      prompt: (row) => row.question,
      tools: [multiply],
      reward: (row, reply) => mathAnswer(reply.text, row.answer),
    };

    test("tool calls are answered until the model gives its answer, which is graded", async () => {
      const { reply, heard } = play(call("multiply", { a: 6, b: 7 }), "It is 42.");
      const [episode] = await runWorkflow({ workflow: useTools(options), rows, reply });
      expect(heard).toEqual(["6 * 7?", '{"product":42}']);
      expect(episode).toMatchObject({
        termination: "env_done",
        correct: true,
        metrics: { turns: 2, tool_calls: 1, tool_errors: 0, malformed_tool_calls: 0 },
        trajectories: [{ reward: 1 }],
      });
      expect(episode!.trajectories[0]!.steps[1]!.starts).toBeUndefined();
    });

    test.each<[string, string, string, object]>([
      [
        "an unknown tool",
        call("multipli", { a: 1 }),
        'Error: there is no tool "multipli". Did you mean multiply?',
        { tool_errors: 1 },
      ],
      ["wrong arguments", call("multiply", { a: "6" }), "Error: ✖ Invalid input: expected number", { tool_errors: 1 }],
      ["a tool that throws", call("multiply", { a: 6, b: 0 }), "Error: too easy", { tool_errors: 1 }],
      [
        "a call that cannot be read",
        "<tool_call>\n{nonsense\n</tool_call>",
        "That could not be read:",
        { malformed_tool_calls: 1, tool_calls: 0 },
      ],
    ])("%s is shown to the model and counted", async (_name, said, told, metrics) => {
      const { reply, heard } = play(said, "42");
      const [episode] = await runWorkflow({ workflow: useTools(options), rows, reply });
      expect(heard[1]).toContain(told);
      expect(episode).toMatchObject({ metrics: { turns: 2, ...metrics }, trajectories: [{ reward: 1 }] });
    });

    test("calls of one reply run side by side, answered in order", async () => {
      const order: string[] = [];
      const wait = defineTool({
        name: "wait",
        description: "Waits.",
        parameters: { name: z.string(), turns: z.number() },
        run: async ({ name, turns }) => {
          for (let turn = 0; turn < turns; turn++) await null;
          order.push(name);
          return name;
        },
      });
      const { reply, heard } = play(
        call("wait", { name: "slow", turns: 9 }) + call("wait", { name: "fast", turns: 0 }),
        "42",
      );
      const [episode] = await runWorkflow({ workflow: useTools({ ...options, tools: [wait] }), rows, reply });
      expect(order).toEqual(["fast", "slow"]);
      expect(heard[1]).toBe("fast");
      expect(episode!.trajectories[0]!.steps[1]!.messages.slice(-2).map(({ content }) => content)).toEqual([
        "slow",
        "fast",
      ]);
    });

    test("a model that never answers is graded by its last reply; tools of an attempt are closed", async () => {
      let closed = 0;
      const workflow = useTools<Row>({
        ...options,
        tools: () => ({ tools: [multiply], close: () => void closed++ }),
        maxSteps: 2,
      });
      const [episode] = await runWorkflow({ workflow, rows, reply: () => call("multiply", { a: 2, b: 2 }) });
      expect(episode).toMatchObject({
        termination: "max_turns_exceeded",
        correct: false,
        trajectories: [{ reward: 0 }],
      });
      expect(closed).toBe(1);
    });
  });

  describe("solverJudge", () => {
    const workflow = solverJudge<Row>({
      prompt: (row) => row.question,
      reward: (row, reply) => mathAnswer(reply.text, row.answer),
      attempts: 2,
    });
    test("solvers and judges have their own rewards", async () => {
      const said = ["42", "41"];
      const [episode] = await runWorkflow({
        workflow,
        rows,
        reply: ([message]) => (message!.content.includes("Proposed answer") ? "Yes, it is." : said.shift()!),
      });
      expect(episode!.trajectories.map(({ name, instance, reward }) => [name, instance, reward])).toEqual([
        ["solver", 1, 1],
        ["solver", 2, 0],
        ["judge", 1, 1],
        ["judge", 2, 0],
      ]);
      expect(episode).toMatchObject({ correct: true, metrics: { judge_right: 0.5, judge_silent: 0 } });
    });
    test("a judge without a verdict gets 0; if the solution's reward is unknown, so is the judge's", async () => {
      const unknown = solverJudge<Row>({ prompt: (row) => row.question, reward: () => ({ reward: null }) });
      const rewards = async (one: Workflow<Row>) =>
        (await runWorkflow({ workflow: one, rows, reply: () => "42" }))[0]!.trajectories.map(({ reward }) => reward);
      expect(await rewards(workflow)).toEqual([1, 1, 0, 0]);
      expect(await rewards(unknown)).toEqual([null, null]);
    });
  });

  test("arguments on which a tool's pattern backtracks without end are refused", () => {
    const parameters = { words: z.string().regex(/^(\w+\s?)*$/) };
    const tool = defineTool({ name: "x", description: "", parameters, run: ({ words }) => words });
    const { signal } = new AbortController();
    expect(tool.run({ words: "two words" }, { signal })).toBe("two words");
    expect(() => tool.run({ words: `${"a".repeat(60)}!` }, { signal })).toThrow("too long to check");
  });

  test("a renamed column is a compile error in every workflow", () => {
    // @ts-expect-error: rows have no `ansver`
    useTools<Row>({ prompt: (row) => row.question, tools: [], reward: (row) => row.ansver });
    // @ts-expect-error: rows have no `qestion`
    solverJudge<Row>({ prompt: (row) => row.qestion, reward: () => 1 });
    // @ts-expect-error: rows have no `count`
    multiTurn<Row>({ environment: (task) => counter(task.row.count) });
    expectTypeOf(useTools<Row>).returns.toEqualTypeOf<Workflow<Row>>();
    // @ts-expect-error: a tool's arguments have the types of its parameters
    defineTool({ name: "x", description: "", parameters: { a: z.number() }, run: ({ a }) => a.length });
  });
});

describe("single turn", () => {
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
});
