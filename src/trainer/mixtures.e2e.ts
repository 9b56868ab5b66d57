/** GRPO of a tiny mixture of experts: LoRA on experts, replay of the router's choice, and the auxiliary loss. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { beforeAll, expect, test } from "vitest";
import { singleTurn } from "../agents/workflows.ts";
import { makeTinyMixture } from "../base/python.fixture.ts";
import { generated } from "../data/dataset.ts";
import { nightly } from "../nightly.fixture.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import { train } from "./train.ts";

const root = temporaryFolder("mixtures");

beforeAll(async () => {
  if (!nightly) return;
  await makeTinyMixture(join(root, "model"));
});

interface Case {
  experts: boolean;
  replay: "disabled" | "R2";
  weight: number;
  rank?: number;
}

async function trained(name: string, { experts, replay, weight, rank = 4 }: Case) {
  const folder = join(root, name);
  const { exitCode, history } = await train({
    train: generated("letters", 64, (index) => ({ index })),
    workflow: singleTurn<{ index: number }>({
      prompt: ({ index }) => `say ${index}`,
      reward: (_, { text }) => [...text].filter((letter) => letter >= "a" && letter <= "z").length / 8,
    }),
    config: {
      model: { name: join(root, "model"), lora_rank: rank, train_experts: experts },
      rllm: {
        algorithm: { router_replay: replay },
        rollout: { n: 4 },
        trainer: { total_batches: 2, logger: [], save_freq: 2, run_dir: folder },
      },
      // Two optimizer steps between publishes, so that the router can change its choice.
      training: { learning_rate: 0.01, num_minibatches: 2 },
      data: { train_batch_size: 4, max_response_length: 8 },
      local: { dtype: "float32", device: "cpu", threads: 1, router_aux_loss: weight },
    },
  });
  expect(exitCode).toBe(0);
  const metrics = history.map((step) => step.metrics);
  for (const step of metrics) {
    expect(Object.entries(step).filter(([, value]) => !Number.isFinite(value))).toEqual([]);
    expect(step["actor/grad_norm"]).toBeGreaterThan(0);
    expect(step["rollout/logprob_diff_mean"]).toBeLessThan(1e-4);
  }
  return { metrics, weights: readWeights(folder) };
}

/** The largest absolute value of each tensor of the policy's last checkpoint, by its name. */
function readWeights(folder: string): Map<string, number> {
  const bytes = readFileSync(join(folder, "checkpoints", "step-000002", "policy", "weights.safetensors"));
  const length = Number(bytes.readBigUInt64LE());
  const header = JSON.parse(bytes.toString("utf8", 8, 8 + length)) as Record<
    string,
    { data_offsets?: [number, number] }
  >;
  const largest = Object.entries(header).map(([name, { data_offsets: [begin, end] = [0, 0] }]): [string, number] => {
    const values = new Float32Array(
      bytes.buffer.slice(bytes.byteOffset + 8 + length + begin, bytes.byteOffset + 8 + length + end),
    );
    return [name, values.reduce((most, value) => Math.max(most, Math.abs(value)), 0)];
  });
  return new Map(largest);
}

const balance = "engine/train/router_aux_loss";

/** The matrices that are zero before the first step. */
const changedExperts = (weights: Map<string, number>) =>
  [...weights].filter(([name, largest]) => /experts.*lora_B/.test(name) && largest > 0).length;

test.runIf(nightly)("experts are trained, with a replayed routing and the auxiliary loss", async () => {
  const { metrics, weights } = await trained("all", { experts: true, replay: "R2", weight: 0.01 });
  for (const step of metrics) expect(step[balance]).toBeGreaterThan(0);
  // Two layers with two matrices each.
  expect(changedExperts(weights)).toBe(4);
});

test.runIf(nightly)("without these settings experts stay as they are, and nothing is balanced", async () => {
  const { metrics, weights } = await trained("none", { experts: false, replay: "disabled", weight: 0 });
  for (const step of metrics) expect(step).not.toHaveProperty(balance);
  expect([...weights.keys()].filter((name) => name.includes("experts"))).toEqual([]);
});

test.runIf(nightly).each<[string, Case]>([
  ["replay", { experts: false, replay: "R2", weight: 0 }],
  ["balance", { experts: false, replay: "disabled", weight: 0.01 }],
  ["full", { experts: false, replay: "R2", weight: 0.01, rank: 0 }],
])("each setting by itself, and with all weights: %s", async (name, settings) => {
  const { metrics, weights } = await trained(name, settings);
  for (const step of metrics) expect(balance in step).toBe(settings.weight > 0);
  expect(changedExperts(weights)).toBe(0);
  expect([...weights.keys()].some((weight) => weight.includes("experts"))).toBe(settings.rank === 0);
});
