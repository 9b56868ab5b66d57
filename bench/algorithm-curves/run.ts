/**
 * The curves of docs/guide/choosing-an-algorithm.md: every estimator and every loss on the same short task.
 *
 *   npm run bench -- algorithm-curves [--steps 20] [--seeds 3] [--out docs/guide/curves]
 *
 * The task is the toy that the tests learn: a table of letter pairs learns to answer with "a". It shows that an algorithm
 * learns and how steadily, not which one is best for a language model.
 */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { singleTurn } from "../../src/agents/workflows.ts";
import type { EstimatorName } from "../../src/algorithms/estimators.ts";
import { mean } from "../../src/base/values.ts";
import { generated } from "../../src/data/dataset.ts";
import { tabularEngine } from "../../src/testing/index.ts";
import { defineExperiment } from "../../src/trainer/experiment.ts";
import { train } from "../../src/trainer/train.ts";
import { algorithm, estimatorRuns, lossRuns, type NamedRun } from "../../src/trainer/update.fixture.ts";

const { values: flags } = parseArgs({
  options: {
    steps: { type: "string", default: "20" },
    seeds: { type: "string", default: "3" },
    out: { type: "string", default: fileURLToPath(new URL("../../docs/guide/curves/", import.meta.url)) },
  },
});
const steps = Number(flags.steps);

const experiment = defineExperiment({
  train: generated("letters", 64, (index) => ({ index })),
  workflow: singleTurn({
    prompt: () => "b",
    reward: (_row, reply) => [...reply.text].filter((letter) => letter === "a").length / 6,
  }),
  config: {
    model: { lora_rank: 0 },
    rllm: {
      rollout: { n: 6 },
      trainer: { total_batches: steps, logger: [], save_freq: 0, test_freq: 0 },
      critic: { learning_rate: 0.1 },
    },
    training: { learning_rate: 0.15, num_minibatches: 2, ppo_epochs: 2 },
    data: { train_batch_size: 4, max_response_length: 6 },
  },
});

const root = mkdtempSync(join(tmpdir(), "hone-curves-"));
let folders = 0;

/** `[seeds][steps]` mean rewards. */
async function curves(overrides: readonly string[]): Promise<number[][]> {
  const found: number[][] = [];
  for (let seed = 0; seed < Number(flags.seeds); seed++) {
    const engine = tabularEngine({ alphabet: "abc" });
    const own = [`rllm.trainer.seed=${seed}`, `rllm.trainer.run_dir=${join(root, `run-${++folders}`)}`];
    const { history } = await train(experiment, {
      engine: { engine, chat: engine.chat },
      overrides: [...overrides, ...own],
    });
    found.push(history.map(({ metrics }) => metrics["reward/mean"]!));
  }
  return found;
}

const panel = { width: 164, height: 90, columns: 5, top: 20, margin: 10 };
const legendHeight = 24;
const text = (x: number, y: number, size: number, words: string, more = "") =>
  `<text x="${x}" y="${y}" font-family="sans-serif" font-size="${size}" fill="#444"${more}>${words}</text>`;

/** Small multiples: a panel a name, thin lines for seeds and a thick one for their mean, reward 0 to 1 over the steps. */
function drawing(title: string, panels: readonly { name: string; seeds: number[][] }[]): string {
  const rows = Math.ceil(panels.length / panel.columns);
  const [width, height] = [panel.columns * panel.width, rows * panel.height + legendHeight];
  const cells = panels.map(({ name, seeds }, index) => {
    const [x, y] = [(index % panel.columns) * panel.width, Math.floor(index / panel.columns) * panel.height];
    const [w, h] = [panel.width - 2 * panel.margin, panel.height - panel.top - panel.margin];
    const line = (rewards: readonly number[], style: string) => {
      const points = rewards.map(
        (reward, step) => `${((step / (steps - 1)) * w).toFixed(1)},${(h - reward * h).toFixed(1)}`,
      );
      return `<polyline points="${points.join(" ")}" fill="none" ${style}/>`;
    };
    const middle = Array.from({ length: steps }, (_, step) => mean(seeds.map((rewards) => rewards[step]!)));
    return [
      `<g transform="translate(${x + panel.margin},${y + panel.top})">`,
      text(0, -5, 10, name),
      text(-3, 5, 7, "1", ' text-anchor="end"'),
      text(-3, h + 2, 7, "0", ' text-anchor="end"'),
      `<rect width="${w}" height="${h}" fill="none" stroke="#ddd"/>`,
      ...seeds.map((rewards) => line(rewards, 'stroke="#9bbbe0" stroke-width="1"')),
      line(middle, 'stroke="#1f5fa8" stroke-width="2"'),
      "</g>",
    ].join("");
  });
  const legend = text(
    panel.margin,
    height - 9,
    9,
    `mean reward, 0 to 1, over ${steps} steps; thin: ${flags.seeds} seeds, thick: their mean`,
  );
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}"><title>${title}</title><rect width="${width}" height="${height}" fill="#fff"/>${[...cells, legend].join("\n")}</svg>\n`;
}

async function draw(file: string, runs: readonly NamedRun[]): Promise<void> {
  const panels: { name: string; seeds: number[][] }[] = [];
  for (const [name, overrides] of runs) {
    const seeds = await curves(overrides);
    panels.push({ name, seeds });
    const ends = [seeds.map((rewards) => rewards[0]!), seeds.map((rewards) => rewards.at(-1)!)];
    console.log(`${name.padEnd(36)} ${ends.map((rewards) => mean(rewards).toFixed(2)).join(" -> ")}`);
  }
  mkdirSync(flags.out, { recursive: true });
  const title = `Rewards over ${steps} steps: ${panels.map(({ name }) => name).join(", ")}`;
  writeFileSync(join(flags.out, file), drawing(title, panels));
}

/** Names of the same algorithm share a panel. */
const aliases: Readonly<Record<string, EstimatorName>> = {
  group_norm: "grpo",
  reinforce_baseline: "dr_grpo",
  cpgd: "prpo",
};
const drawnEstimators = estimatorRuns
  .filter(([name]) => !Object.hasOwn(aliases, name))
  .map(([name, overrides]): NamedRun => {
    const others = Object.keys(aliases).filter((alias) => aliases[alias] === name);
    return [[name, ...others].join(", "), overrides];
  });
try {
  await draw("estimators.svg", drawnEstimators);
  await draw("losses.svg", [
    ...lossRuns,
    ["gspo, gspo_gradient sequence", algorithm("loss_fn=gspo", "policy_loss.gspo_gradient=sequence")],
    ["ppo, clip_ratio_c 3", algorithm("clip_ratio_c=3")],
    ["ppo, eps_clip_high 0.28", algorithm("eps_clip_high=0.28")],
    ["ppo, entropy_coeff 0.01", algorithm("entropy_coeff=0.01")],
    ["ppo, high-entropy tokens 0.5", algorithm("high_entropy_token_ratio=0.5")],
    ["ppo, kl_beta 0.05", algorithm("kl_beta=0.05")],
    ["ppo, KL in the reward", algorithm("use_kl_in_reward=true", "kl_beta=0.02")],
  ]);
} finally {
  rmSync(root, { recursive: true, force: true });
}
