import { expect, test } from "vitest";
import { composeConfig } from "../config/compose.ts";
import { generated } from "../data/dataset.ts";
import { planOf } from "./plan.ts";

const train = generated("tasks", 64, (index) => index);
const workflow = () => 0;
const sizes = ["data.train_batch_size=16", "rllm.rollout.n=8", "training.num_minibatches=2"];

test.each([
  [[], "2 optimizer steps of about 64 per training step; "],
  [
    ["local.processes=2"],
    "about 64 per training step -> about 32 for each of 2 processes, in micro-batches that fit into memory; ",
  ],
  [
    ["local.processes=4", "local.sequence_parallel=2", "local.micro_batch_tokens=4096"],
    "about 64 per training step -> about 32 for each of 2 groups of 2 processes, in micro-batches of up to 4096 tokens; ",
  ],
  [["local.processes=3", "local.sequence_parallel=2"], "about 64 per training step; "],
  [["local.processes=2", "rllm/backend=tinker", "tinker_base_url=http://localhost:1"], "about 64 per training step; "],
])("%j: the arithmetic of a step", (overrides, line) => {
  const { config } = composeConfig({ overrides: [...sizes, ...overrides] });
  expect(planOf({ train, workflow }, config).arithmetic).toContain(line);
});
