/** `rllm.agent`, `rllm.env` and `rllm.workflow` through whole runs: each key is set to another value and must have an effect. */
// Slow: a run for each key.
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { expect, test } from "vitest";
import type { Workflow, WorkflowContext } from "../agents/types.ts";
import { generated } from "../data/dataset.ts";
import { memory, temporaryFolder } from "../temporary-folder.fixture.ts";
import { tabularEngine } from "../testing/index.ts";
import type { Experiment } from "./experiment.ts";
import type { NamedParts } from "./named.ts";
import { train } from "./train.ts";

interface Row {
  size: number;
  seed: number;
}
const alphabet = Array.from({ length: 95 }, (_, index) => String.fromCharCode(32 + index)).join("");
const module = "src/trainer/user-agents.fixture.ts";
const root = temporaryFolder("acting-keys", memory);
let runs = 0;

/** Two steps of two tasks, two rollouts each; with a workflow, or with what the overrides name. */
async function run(overrides: readonly string[], parts: NamedParts<Row> & { workflow?: Workflow<Row> } = {}) {
  const experiment: Experiment<Row> = {
    train: generated("tasks", 8, (index) => ({ size: 3, seed: index })),
    ...parts,
    config: {
      model: { lora_rank: 0 },
      rllm: {
        rollout: { n: 2 },
        trainer: { total_batches: 1, logger: [], save_freq: 0, run_dir: join(root, `${++runs}`) },
      },
      data: { train_batch_size: 2, max_response_length: 2000, max_prompt_length: 100_000 },
      training: { max_length: 200_000 },
    },
  };
  const engine = tabularEngine({ alphabet: `${alphabet}\n` });
  const { history } = await train(experiment, { engine: { engine, chat: engine.chat }, overrides });
  return history[0]!.metrics;
}

const lake = ["rllm.env.name=frozenlake"];
const named = [...lake, "rllm.workflow.use_workflow=true", "rllm.workflow.name=multi_turn_workflow"];

test.each<[string, string[], string, number]>([
  ["rllm.env.name", lake, "batch/turns", 18],
  ["rllm.env.env_args", [...lake, "+rllm.env.env_args.moves=3"], "batch/turns", 3],
  ["rllm.agent.max_steps", [...lake, "rllm.agent.max_steps=2"], "batch/turns", 2],
  ["rllm.workflow.name", [...named.slice(0, 2)], "batch/turns", 1],
  ["rllm.workflow.name, another", [...named, "+rllm.env.env_args.moves=3"], "batch/turns", 3],
  ["workflow_args.max_steps", [...named, "+rllm.workflow.workflow_args.max_steps=2"], "batch/turns", 2],
  [
    "workflow_args.env_cls and env_args",
    [
      ...named.slice(1),
      "rllm.workflow.workflow_args.env_cls=frozenlake",
      "+rllm.workflow.workflow_args.env_args.moves=4",
    ],
    "batch/turns",
    4,
  ],
])("%s", async (_key, overrides, metric, expected) => {
  expect((await run(overrides))[metric]).toBe(expected);
});

test.each<[string, string[]]>([
  ["rllm.agent.name and agent_args", [`rllm.agent.name=${module}:Shouting`, "+rllm.agent.agent_args.mark='??'"]],
  ["rllm.agent.engine_args", [`rllm.agent.name=${module}:Shouting`, "+rllm.agent.engine_args.mark='??'"]],
  [
    "workflow_args.agent_cls and agent_args",
    [
      ...["rllm.workflow.use_workflow=true", `rllm.workflow.workflow_args.agent_cls=${module}:Shouting`],
      "+rllm.workflow.workflow_args.agent_args.mark='??'",
    ],
  ],
])("%s", async (_key, overrides) => {
  const seen: string[] = [];
  const environments: NamedParts<Row>["environments"] = {
    listening: () => ({
      reset: () => "go",
      step: (reply) => {
        seen.push(reply.transcript());
        return { observation: "", reward: 0, done: true };
      },
    }),
  };
  await run([...overrides, "rllm.env.name=listening"], { environments });
  expect(seen.length).toBe(4);
  for (const transcript of seen) expect(transcript).toContain("GO??");
});

/** Counts how many run at the same time, at most. */
function crowd() {
  const counts = { now: 0, most: 0 };
  const workflow: Workflow<Row> = async () => {
    counts.most = Math.max(counts.most, ++counts.now);
    await sleep(2);
    counts.now--;
    return 1;
  };
  return { counts, workflow };
}

test.each<[string, number]>([
  ["rllm.workflow.n_parallel_tasks=3", 3],
  ["rllm.agent.engine_args.n_parallel_agents=2", 2],
  ["rllm.workflow.n_parallel_tasks=256", 4],
])("%s", async (override, most) => {
  const { counts, workflow } = crowd();
  await run([override], { workflow });
  expect(counts.most).toBe(most);
});

test.each<[string, number]>([
  ["rllm.workflow.retry_limit=0", 1],
  ["rllm.workflow.retry_limit=2", 3],
])("%s, each attempt with an environment of its own", async (override, attempts) => {
  const made: number[] = [];
  let environmentCount = 0;
  const environments: NamedParts<Row>["environments"] = {
    // The first one works: a step in which all rollouts fail ends the run.
    broken: () => {
      const works = environmentCount++ === 0;
      let used = 0;
      return {
        reset: () => "go",
        step: () => {
          if (works) return { observation: "", reward: 1, done: true };
          made.push(++used);
          throw new Error("broken");
        },
      };
    },
  };
  const broken = ["rllm.env.name=broken", "rllm.workflow.on_agent_error=retry", override];
  const metrics = await run([...broken, "rllm.workflow.raise_on_error=false"], { environments });
  expect(made).toEqual(Array.from({ length: 3 * attempts }, () => 1));
  expect(metrics["batch/failed_episodes"]).toBe(3);
  await expect(run(broken, { environments })).rejects.toThrow("environment threw Error");
});

test.each<[string, object]>([
  ["rllm.workflow.on_agent_error=reward:0.25", { "batch/failed_episodes_rewarded": 2, "reward/mean": 0.625 }],
  [
    "rllm.workflow.on_agent_error=drop",
    { "batch/failed_episodes_rewarded": 0, "groups/dropped_trajs/failed_episode": 2 },
  ],
])("%s, without a retry", async (override, expected) => {
  const workflow: Workflow<Row> = async (_, { model, rollout }) => {
    await model.chat([{ role: "user", content: "go" }]);
    if (rollout === 0) return 1;
    throw new Error("broken");
  };
  expect(await run([override], { workflow })).toMatchObject({
    "batch/failures/agent": 2,
    "batch/retries": 0,
    ...expected,
  });
});

const hangIn =
  (stage: string): Workflow<Row> =>
  async (_task, context: WorkflowContext) => {
    if (context.rollout === 0) return 1;
    context.stage(stage);
    return new Promise(() => {});
  };

test.each<[string, string]>([
  ["rllm.workflow.set_up_timeout=0.01", "set-up"],
  ["rllm.agent.trajectory_timeout=0.01", "search"],
  ["rllm.workflow.score_timeout=0.01", "reward"],
  ["rllm.workflow.workflow_args.timeout=0.01", "search"],
])("%s", async (override, stage) => {
  const metrics = await run([override], { workflow: hangIn(stage) });
  expect(metrics["batch/termination_reason/timeout"]).toBe(0.5);
});

test("rllm.workflow.tear_down_timeout", async () => {
  const workflow: Workflow<Row> = (_task, { tearDown }) => {
    tearDown(() => new Promise(() => {}));
    return 1;
  };
  expect((await run(["rllm.workflow.tear_down_timeout=0.01"], { workflow }))["batch/tear_down_problems"]).toBe(1);
});

test.each([
  ["3", 3],
  ["0", 0],
  ["-1", -1],
])("rllm.workflow.warm_queue_size=%s", async (value, size) => {
  const sizes: (number | undefined)[] = [];
  const workflow: Workflow<Row> = (_task, { warmQueueSize }) => {
    sizes.push(warmQueueSize);
    return 1;
  };
  await run([`rllm.workflow.warm_queue_size=${value}`], { workflow });
  expect(new Set(sizes)).toEqual(new Set([size]));
});

test.each<[string[], string]>([
  [[...lake, "+rllm.workflow.workflow_args.max_steps=3"], "rllm.workflow.use_workflow is false"],
  [[...lake, "rllm.workflow.name=multi_turn_workflow"], "it requires rllm.workflow.use_workflow=true"],
  [[...named, "+rllm.workflow.workflow_args.max_step=3"], "does not have the argument max_step"],
  [[...named, "+rllm.workflow.workflow_args.max_steps=0"], "the number of turns must be a positive integer"],
  [[...named, "rllm.workflow.workflow_args.env_cls=math"], "so rllm.env.name would not be read"],
  [["rllm.workflow.use_workflow=true", `rllm.workflow.name=${module}:Echo`], "this is a class"],
  [
    ["rllm.workflow.use_workflow=true", `rllm.workflow.name=${module}:always`, ...lake],
    "rllm.env.name would not be read",
  ],
])("%j is refused", async (overrides, message) => {
  await expect(run(overrides)).rejects.toThrow(message);
});

test.each<[string[], NamedParts<Row> & { workflow?: Workflow<Row> }, string]>([
  [lake, { reward: () => 1 }, "the environment frozenlake gives rewards of its own, so the experiment's reward"],
  [[...lake, "rllm.reward.remote_url=[http://x]"], {}, "so rllm.reward.remote_url would not be read"],
  [["rllm.reward.remote_url=[http://x]"], { reward: () => 1 }, "the script defines its own reward"],
  [[], { workflow: () => 1, reward: () => 1 }, "the script defines its own workflow, so the experiment's reward"],
  [["+rllm.workflow.workflow_args.max_steps=3"], { workflow: () => 1 }, "workflow_args.max_steps would not be read"],
  [["+rllm.agent.engine_args.mark=1"], { workflow: () => 1 }, "so rllm.agent.engine_args would not be read"],
])("%j together with settings that it does not read is refused", async (overrides, parts, message) => {
  await expect(run(overrides, parts)).rejects.toThrow(message);
});

test("rllm.workflow.use_workflow=true runs the script's own workflow, as in rLLM", async () => {
  const { counts, workflow } = crowd();
  await run(["rllm.workflow.use_workflow=true"], { workflow });
  expect(counts.most).toBeGreaterThan(0);
});
