import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { beforeEach, describe, expect, it, vi } from "vitest";
import type { Workflow } from "../agents/types.ts";
import { RunError } from "../base/errors.ts";
import type { ConfigInput } from "../config/schema.ts";
import { summarizeWarnings } from "./failures.ts";
import { metricLines, openToy, type ToyRow, temporaryFolders, toy } from "./toy-experiment.fixture.ts";
import { train } from "./train.ts";

const pauses = vi.hoisted(() => ({ seconds: 0 }));
vi.mock("node:timers/promises", async (importActual) => ({
  ...(await importActual<typeof import("node:timers/promises")>()),
  setTimeout: async (milliseconds: number) => {
    pauses.seconds += milliseconds / 1000;
  },
}));
beforeEach(() => {
  pauses.seconds = 0;
});

const { newFolder } = temporaryFolders("failing");

/** Fails if `fails` returns true for the number of training rollouts begun so far. */
function failing(fails: (begun: number) => boolean, error: () => unknown): Workflow<ToyRow> {
  let begun = 0;
  return async (_task, { model, purpose, stage }) => {
    const { text } = await model.chat([{ role: "user", content: "b" }]);
    stage("reward");
    if (purpose === "train" && fails(begun++)) throw await error();
    return [...text].filter((letter) => letter === "a").length / 4;
  };
}

const refused = () => Object.assign(new Error("connect ECONNREFUSED 127.0.0.1:8000"), { code: "ECONNREFUSED" });
const lenient: ConfigInput = { rllm: { workflow: { raise_on_error: false, retry_limit: 0 } } };

async function attempt(workflow: Workflow<ToyRow>, config: ConfigInput = lenient) {
  const folder = newFolder();
  const result = await train(toy(config, undefined, workflow), {
    engine: openToy(),
    overrides: [`rllm.trainer.run_dir=${folder}`],
  }).catch((error: unknown) => error as RunError);
  return { folder, result };
}

describe("a run whose rollouts all fail stops", () => {
  it("with the main failure, its place, exit 1 and no checkpoint", async () => {
    const { folder, result } = await attempt(failing(() => true, refused));
    expect(result).toBeInstanceOf(RunError);
    expect(result).toMatchObject({
      exitCode: 1,
      hint: expect.stringMatching(/^fix the reward; episodes\/ has every failure/),
    });
    expect((result as RunError).message).toMatch(
      /^all 16 rollouts of step 1 failed, most often \(16 of 16\) in the reward: .*ECONNREFUSED.* \(rollout 0 of task toy\/\d+\)\n.*failing-rollouts\.test\.ts:\d+/,
    );
    expect(pauses.seconds).toBe(5 + 10 + 20 + 40);
    expect(readdirSync(join(folder, "checkpoints"))).toEqual([]);
    const [episode = ""] = readFileSync(join(folder, "episodes", "step-000001.jsonl"), "utf8").split("\n");
    expect(JSON.parse(episode)).toMatchObject({ failure: { boundary: "reward" } });
  });

  it("when its reward hangs", async () => {
    const limits: ConfigInput = { rllm: { workflow: { score_timeout: 0.01 } } };
    const hanging = failing(
      () => true,
      () => new Promise(() => {}),
    );
    const { result } = await attempt(hanging, limits);
    expect(result).toMatchObject({ exitCode: 1, hint: expect.stringMatching(/what hangs, or raise its time limit/) });
    expect((result as RunError).message).toMatch(/at a time limit: its reward took longer than 0\.01 s/);
  });

  it("not for an outage of a minute, which leaves no trace in the metrics", async () => {
    const { folder: whole } = await attempt(failing(() => false, refused));
    const { folder, result } = await attempt(failing((begun) => begun >= 32 && begun < 32 + 3 * 16, refused));
    expect(result).toMatchObject({ exitCode: 0, step: 6 });
    expect(metricLines(folder)).toEqual(metricLines(whole));
    const log = readFileSync(join(folder, "log.txt"), "utf8");
    expect(log.match(/warning: all 16 rollouts of step 3 failed/g)).toHaveLength(3);
    expect(log.match(/trying again in/g)).toHaveLength(3);
  });

  it("when most fail in three steps in a row", async () => {
    const { folder, result } = await attempt(failing((begun) => begun >= 16 && begun % 16 < 12, refused));
    expect((result as RunError).message).toMatch(
      /^most rollouts failed, 3 steps in a row \(12 of 16 in step 4\), most often \(12 of 12\)/,
    );
    expect(metricLines(folder).at(-1)).toMatchObject({ step: 4, "batch/failed_episodes": 12 });
  });

  it("not when most fail in two, and not when half of them do", async () => {
    const twice = await attempt(failing((begun) => begun >= 16 && begun < 48 && begun % 16 < 12, refused));
    const half = await attempt(failing((begun) => begun % 2 === 0, refused));
    expect([twice.result, half.result]).toMatchObject([{ exitCode: 0 }, { exitCode: 0 }]);
  });

  it("at once if the reward throws", async () => {
    const { result } = await attempt(
      failing(
        () => true,
        () => new TypeError("row.answer is undefined"),
      ),
    );
    expect((result as RunError).message).toMatch(/^all 16 rollouts of step 1 failed.*in the reward: .*TypeError/);
    expect(pauses.seconds).toBe(0);
  });

  it("at once if the agent throws an error of its own", async () => {
    const { result } = await attempt(
      async (_task, { model }) => {
        await model.chat([{ role: "user", content: "b" }]);
        throw new TypeError("rows.map is not a function");
      },
      { rllm: { workflow: { on_agent_error: "drop" } }, data: { max_response_length: 64 } },
    );
    expect(result).toMatchObject({ exitCode: 1, hint: expect.stringMatching(/^fix the workflow/) });
    expect(pauses.seconds).toBe(0);
  });

  it("after three steps if on_agent_error gives each error a reward", async () => {
    const { folder, result } = await attempt(
      async (_task, { model, purpose }) => {
        await model.chat([{ role: "user", content: "b" }]);
        if (purpose === "validate") return 0;
        throw new TypeError("rows.map is not a function");
      },
      { rllm: { workflow: { on_agent_error: "reward:0" } }, data: { max_response_length: 64 } },
    );
    expect((result as RunError).message).toMatch(/^most rollouts failed, 3 steps in a row \(16 of 16 in step 3\)/);
    expect(metricLines(folder).at(-1)).toMatchObject({ step: 3, "batch/failures/agent": 16 });
  });

  it.each([1, 6])("in asynchronous training of %i steps", async (steps) => {
    const { result } = await attempt(
      failing(() => true, refused),
      {
        rllm: {
          ...lenient.rllm,
          async_training: { enable: true, mini_batch_size: 4 },
          trainer: { total_batches: steps },
        },
      },
    );
    expect(result).toMatchObject({ exitCode: 1, message: expect.stringContaining("rollouts") });
  });

  it("in a validation too", async () => {
    const { result } = await attempt(async () => {
      throw refused();
    });
    expect((result as RunError).message).toMatch(/^all 8 rollouts of the validation failed, .*in the workflow: /);
  });
});

it("failed rollouts of one cause are two lines in the first step and one in later steps, not one each", () => {
  const lines: string[] = [];
  const reported = new Set<string>();
  for (const step of [3, 4]) {
    const warnings = summarizeWarnings((text) => lines.push(text), `see the episodes of step ${step}`, reported);
    for (let rollout = 0; rollout < 100; rollout++) warnings.add("agent: no", `rollout ${rollout} failed: no`);
    if (step === 3) warnings.add("engine: full", "rollout 7 failed: full");
    warnings.end();
  }
  expect(lines).toEqual([
    "rollout 0 failed: no",
    "rollout 7 failed: full",
    "99 more: agent: no (see the episodes of step 3)",
    "100 more: agent: no (see the episodes of step 4)",
  ]);
});
