import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { beforeAll, describe, expect, it } from "vitest";
import { makeTinyModel } from "../../base/python.fixture.ts";
import { readLines } from "../../json-lines.fixture.ts";
import { nightly } from "../../nightly.fixture.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { outputOf, project, startHone } from "./hone.fixture.ts";

const root = temporaryFolder("examples");
let model: string;

beforeAll(async () => {
  model = await makeTinyModel(join(root, "model"));
});

/** The example makes a model that reads pictures from the tiny one. */
const tinyPictures = { BASE_MODEL: join(root, "model"), PICTURE_MODEL: join(root, "picture-model") };

/** Runs the command of the README on a tiny model for two steps. */
async function runExample(name: string, env: Record<string, string> = {}): Promise<Record<string, unknown>[]> {
  const folder = join(root, name);
  const small = [
    ...[
      `model.name=${env.PICTURE_MODEL ?? model}`,
      "model.lora_rank=4",
      `rllm.trainer.run_dir=${folder}`,
      "rllm.trainer.total_batches=2",
    ],
    ...["rllm.rollout.n=4", "data.train_batch_size=2", "data.max_prompt_length=2048", "data.max_response_length=24"],
    ...["training.max_length=4096", "rllm.trainer.val_before_train=false", "rllm.trainer.test_freq=0"],
    ...["data.val_batch_size=8", "local.dtype=float32", "local.device=cpu", "local.threads=1"],
  ];
  await outputOf(startHone(["train", `examples/${name}/train.ts`, ...small], { env: { ...process.env, ...env } }));
  return readLines<Record<string, unknown>>(join(folder, "metrics.jsonl")).filter((line) => !line.kind);
}

describe("examples", () => {
  it("each has a README that names its command", () => {
    for (const name of readdirSync(join(project, "examples"))) {
      const readme = join(project, "examples", name, "README.md");
      expect(existsSync(readme), readme).toBe(true);
      expect(readFileSync(readme, "utf8")).toMatch(new RegExp(`hone-rl train examples/${name}/[\\w-]+\\.ts`));
    }
  });

  const runs: [name: string, role: string, metrics: string[], env: Record<string, string>][] = [
    ["grid-world", "agent", ["batch/turns", "batch/invalid_moves"], {}],
    ["solver-judge", "judge", ["batch/judge_silent", "reward/solver/mean"], {}],
    ["code-sandbox", "agent", ["batch/reward/tests", "batch/reward/block"], { HONE_SANDBOX: "process" }],
    ["reward-server", "agent", ["batch/remote_reward_retries"], {}],
    ["mcp-tools", "agent", ["batch/tool_calls", "batch/tool_errors"], {}],
    ["ai-sdk-agent", "agent", ["gateway/calls_ok"], {}],
    ["openai-client", "agent", ["gateway/calls_ok"], {}],
    ["pictures", "agent", [], { ...tinyPictures, LAYERS: "1", WARM_UP: "32" }],
  ];
  /** Several roles, a sandbox, tools of another program, and an agent's own client. */
  const few = ["solver-judge", "code-sandbox", "mcp-tools", "ai-sdk-agent"];

  it.each(runs.filter(([name]) => nightly || few.includes(name)))(
    "%s trains for two steps",
    async (name, role, metrics, env) => {
      const lines = await runExample(name, env);
      expect(lines.length).toBe(2);
      for (const line of lines) {
        expect(Object.keys(line)).toEqual(expect.arrayContaining([...metrics, `reward/${role}/mean`]));
        expect(line["batch/failed_episodes"]).toBe(0);
      }
    },
  );
});
