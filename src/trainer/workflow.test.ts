import { describe, expect, test } from "vitest";
import { z } from "zod";
import { defineTool } from "../agents/tools.ts";
import { multiTurn } from "../agents/workflows.ts";
import { composeConfig } from "../config/compose.ts";
import type { Script } from "../testing/scripted.ts";
import { runWorkflow } from "../testing/scripted.ts";
import type { NamedParts } from "./named.ts";
import { resolveWorkflow } from "./workflow.ts";

type Row = Record<string, unknown>;
const module = "src/trainer/user-agents.fixture.ts";

const resolve = (overrides: string[], parts: Parameters<typeof resolveWorkflow<Row>>[0] = {}) =>
  resolveWorkflow<Row>(parts, composeConfig({ overrides }).config.rllm);

async function play(overrides: string[], row: Row, reply: Script, parts: NamedParts<Row> = {}) {
  const workflow = await resolve(overrides, parts);
  const asked: string[] = [];
  const [episode] = await runWorkflow({
    workflow,
    rows: [row],
    reply: (messages, call) => {
      asked.push(messages.map(({ role, content }) => `${role}: ${content}`).join(" | "));
      return reply(messages, call);
    },
  });
  return { asked, ...episode!, reward: episode!.trajectories[0]!.reward };
}

describe("agent mode", () => {
  test("agent and environment by name; their arguments take precedence", async () => {
    const { asked, reward } = await play(["rllm.env.name=math"], { question: "1+1?", answer: "2" }, () => "\\boxed{2}");
    expect(asked).toEqual(["user: 1+1?"]);
    expect(reward).toBe(1);
    const again = await play(
      ["rllm.env.name=math", "+rllm.env.env_args.attempts=2", "+rllm.agent.agent_args.system_prompt=Brief."],
      { question: "1+1?", ground_truth: 2 },
      (messages) => (messages.length > 2 ? "2" : "3"),
    );
    expect(again.asked[0]).toBe("system: Brief. | user: 1+1?");
    expect([again.reward, again.metrics.turns]).toEqual([1, 2]);
  });

  test("arguments of the environment take precedence over the row", async () => {
    const overrides = ["rllm.agent.name=frozenlakeagent", "rllm.env.name=frozenlake", "+rllm.env.env_args.moves=3"];
    const { metrics } = await play(overrides, { size: 4, seed: 1, moves: 9 }, () => "hm");
    expect(metrics).toEqual({ turns: 3, invalid_moves: 3 });
  });

  test("tools, number games, and a reward of the script's", async () => {
    const tools = [defineTool({ name: "two", description: "Gives 2.", parameters: { x: z.number() }, run: () => 2 })];
    const row = { question: "1+1?", answer: 2 };
    const reply: Script = (messages) =>
      messages.at(-1)!.role === "tool" ? "2" : '<tool_call>\n{"name": "two", "arguments": {"x": 1}}\n</tool_call>';
    expect(await play(["rllm.agent.name=tool_agent", "rllm.env.name=tool"], row, reply, { tools })).toMatchObject({
      reward: 1,
    });
    const game = { question: "make 12", numbers: [4, 5, 8], target: 12 };
    expect(await play(["rllm.env.name=countdown"], game, () => "<answer>(8-5)*4</answer>")).toMatchObject({
      reward: 1,
    });
    expect(await play(["rllm.env.name=guess_number"], { secret: 3, low: 3, high: 3 }, () => "3")).toMatchObject({
      reward: 1,
    });
    const own = { reward: () => 0.5, prompt: (fields: Row) => `Q: ${fields.question}` };
    expect(await play(["rllm.env.name=single_turn_env"], row, () => "x", own)).toMatchObject({ reward: 0.5 });
  });

  test("classes of the user's own module, constructed for each attempt", async () => {
    const overrides = [
      `rllm.agent.name=${module}:Shouting`,
      "+rllm.agent.agent_args.mark='?'",
      `rllm.env.name=${module}:Echo`,
    ];
    const { asked, reward } = await play(overrides, {}, () => "four");
    expect([asked, reward]).toEqual([["user: SAY ROW/0?"], 4]);
  });

  test("a reward alone is enough for one question and one answer", async () => {
    const own = { reward: (fields: Row) => fields.worth as number, prompt: (fields: Row) => `Q: ${fields.question}` };
    const { asked, reward } = await play([], { question: "1+1?", worth: 0.5 }, () => "x", own);
    expect([asked, reward]).toEqual([["user: Q: 1+1?"], 0.5]);
  });

  test("agents, environments and workflows that the script defines", async () => {
    const parts: NamedParts<Row> = {
      environments: {
        parrot: () => ({ reset: () => "say", step: () => ({ observation: "", reward: 3, done: true }) }),
      },
    };
    expect(await play(["rllm.env.name=parrot"], {}, () => "x", parts)).toMatchObject({ reward: 3 });
  });
});

describe("workflow mode", () => {
  const use = "rllm.workflow.use_workflow=true";
  const row = { secret: 9, low: 1, high: 100 };
  test("built-in workflows differ by their turns", async () => {
    const args = "rllm.workflow.workflow_args.env_cls=guess_number";
    const turns = async (...more: string[]) => (await play([use, args, ...more], row, () => "1")).metrics.turns;
    expect(await turns()).toBe(1);
    expect(await turns("rllm.workflow.name=multi_turn_workflow")).toBe(7);
    expect(await turns("rllm.workflow.name=cumulative_workflow", "+rllm.workflow.workflow_args.max_steps=3")).toBe(3);
  });
  test("a workflow of the script or of a module", async () => {
    expect(await (await resolve([use, `rllm.workflow.name=${module}:always`]))({} as never, {} as never)).toBe(0.25);
    const parts = { workflows: { mine: () => 0.75 } };
    expect(await (await resolve([use, "rllm.workflow.name=mine"], parts))({} as never, {} as never)).toBe(0.75);
  });
});

describe("mistakes", () => {
  test.each<[string[], NamedParts<Row>, string, string]>([
    [
      ["rllm.env.name=frozen_lake"],
      {},
      "rllm.env.name=frozen_lake: this name does not exist",
      "did you mean frozenlake?",
    ],
    [
      ["rllm.agent.name=frozenlake_agent", "rllm.env.name=math"],
      {},
      "rllm.agent.name=frozenlake_agent",
      "frozenlakeagent",
    ],
    [[], {}, "neither a workflow nor an environment of its own", "frozenlake"],
    [["rllm.env.name='./none.ts#X'"], {}, "the file ./none.ts does not exist", ""],
    [[`rllm.env.name=${module}:Ecko`], {}, "exports no function or class Ecko", "#Echo?"],
    [[`rllm.env.name=${module}`], {}, "the name of the export is missing", "Shouting, Echo, always"],
    [
      ["rllm.workflow.use_workflow=true", "rllm.workflow.name=multiturn_workflow"],
      {},
      "this name does not exist",
      "multi_turn_workflow",
    ],
    [
      [
        "rllm.workflow.use_workflow=true",
        "rllm.workflow.workflow_args.env_cls=math",
        "+rllm.workflow.workflow_args.max_steps=2",
      ],
      {},
      "does not have the argument max_steps",
      "",
    ],
    [
      ["rllm.env.name=math", "+rllm.agent.agent_args.system=x"],
      {},
      "math_agent does not have the argument system",
      "system_prompt",
    ],
  ])("%j", async (overrides, parts, message, hint) => {
    const error = await resolve(overrides, parts).catch((thrown) => thrown);
    expect(error.name).toBe("UserError");
    expect(error.message).toContain(message);
    expect(error.hint ?? "").toContain(hint);
  });

  test("a setting that the script's workflow does not read is refused", async () => {
    const workflow = multiTurn<Row>({
      environment: () => ({ reset: () => "x", step: () => ({ observation: "", reward: 1, done: true }) }),
    });
    expect(await resolve([], { workflow })).toBe(workflow);
    await expect(resolve(["rllm.env.name=math"], { workflow })).rejects.toThrow("so rllm.env.name would not be read");
    await expect(resolve(["rllm.reward.remote_url=[http://x]"], { workflow })).rejects.toMatchObject({
      hint: expect.stringContaining("remoteReward"),
    });
  });

  test.each<[string[], Row, string]>([
    [["rllm.env.name=math"], { question: "1?" }, "row 0: the row has no answer or ground_truth"],
    [["rllm.env.name=math"], { answer: "1" }, "row 0: the row has no question"],
    [["rllm.env.name=frozenlake"], { size: 3 }, "row 0: the row has no field seed with a number"],
    [
      ["rllm.env.name=frozenlake", "+rllm.env.env_args.sise=3"],
      {},
      "the environment frozenlake does not have the argument sise",
    ],
    [["rllm.env.name=single_turn_env"], { question: "1?" }, "has no reward to grade with"],
    [["rllm.env.name=tool"], { question: "1?" }, "has no tools"],
    [["rllm.env.name=code"], { question: "1?" }, "the row has no tests"],
  ])("%j is refused if the row does not have what it needs", async (overrides, row, message) => {
    await expect(play(overrides, row, () => "1")).rejects.toThrow(message);
  });
});

describe("an agent of Harbor", () => {
  const remote = ["rllm.remote_runtime.enabled=true", "rllm.remote_runtime.backend=harbor"];
  const hosted = [...remote, "rllm.remote_runtime.harbor.environment_type=daytona"];

  test("runs in place of a workflow, and must reach the gateway", async () => {
    const row = { path: "/tasks/one", name: "one", instruction: "" };
    await expect(play(hosted, row, () => "")).rejects.toThrow(/a sandbox of daytona cannot reach the gateway at 127/);
    await expect(play(hosted, { question: "1+1?" }, () => "")).rejects.toThrow(/no path of a task's folder/);
  });

  test("refuses what it would not read, and agents whose model cannot be replaced", async () => {
    await expect(resolve(remote, { workflow: () => 1 })).rejects.toThrow(/the script's own workflow would not run/);
    await expect(resolve([...remote, "rllm.env.name=math"])).rejects.toThrow(/rllm\.env\.name would not be read/);
    await expect(resolve(remote, { reward: () => 1 })).rejects.toThrow(/reward would not be read/);
    await expect(resolve([...remote, "rllm.remote_runtime.harbor.agent=cursor-cli"])).rejects.toThrow(
      /cannot be trained/,
    );
  });
});
