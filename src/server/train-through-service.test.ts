import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";
import { singleTurn } from "../agents/single-turn.ts";
import { generated } from "../data/generated.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import { tabularEngine } from "../testing/tabular-engine.ts";
import type { Experiment } from "../trainer/experiment.ts";
import { train } from "../trainer/train.ts";
import { openTinker } from "./tinker-engine.fixture.ts";

const root = temporaryFolder("through");

const experiment: Experiment<unknown> = {
  train: generated("toy", 64, (index) => ({ index })),
  workflow: singleTurn({
    prompt: () => "b",
    reward: (_row, reply) => [...reply.text].filter((letter) => letter === "a").length / 4,
  }),
  config: {
    model: { name: "tiny" },
    rllm: { trainer: { total_batches: 5, logger: [] }, rollout: { n: 8 } },
    training: { learning_rate: 0.3 },
    data: { train_batch_size: 4, max_response_length: 4 },
  },
};

/** Trains through a service; what it keeps outlives each client. */
async function trainThrough(
  overrides: readonly string[] = [],
  options: Partial<Parameters<typeof openTinker>[0]> = {},
) {
  const inner = tabularEngine({ alphabet: "abc" });
  const opened = await openTinker({ stateFolder: join(root, "state"), inner, ...options });
  try {
    const all = ["rllm/backend=tinker", "tinker_base_url=http://in-process", ...overrides];
    const summary = await train(experiment, { overrides: all, engine: { engine: opened.engine, chat: inner.chat } });
    const figures = (name: string) => summary.history.map(({ metrics }) => metrics[name]!);
    return { ...summary, rewards: figures("reward/mean"), figures, requests: opened.requests };
  } finally {
    await opened.close();
  }
}

it("learns, keeps its folder where default_local_dir says, and goes on from a path of the service", async () => {
  const folder = join(root, "run");
  const { rewards } = await trainThrough([`training.default_local_dir=${folder}`]);
  expect(rewards.at(-1)! - rewards[0]!).toBeGreaterThan(0.3);

  const saved = readFileSync(join(folder, "checkpoints", "step-000005", "policy", "tinker.json"), "utf8");
  const { path } = JSON.parse(saved) as { path: string };
  const later = await trainThrough([
    `training.resume_from_tinker_id=${path}`,
    `rllm.trainer.run_dir=${join(root, "later")}`,
    "rllm.trainer.total_batches=1",
  ]);
  expect(later.rewards[0]! - rewards[0]!).toBeGreaterThan(0.3);
});
