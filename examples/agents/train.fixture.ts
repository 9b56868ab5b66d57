/** Trains an agent of this folder with a tiny model, which has to find out that it should look up the price before it answers. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { defineExperiment, fromRows, train } from "hone-rl";
import { tabularEngine } from "hone-rl/testing";
import { afterAll, expect } from "vitest";
import type { Order, shop } from "./shop.ts";

export type Load = () => Promise<{ default: ReturnType<typeof shop> }>;

const root = mkdtempSync(join(tmpdir(), "hone-agents-"));
afterAll(() => rmSync(root, { recursive: true, force: true }));

const ascii = Array.from({ length: 95 }, (_, index) => String.fromCodePoint(32 + index));

/** A model that says one of `replies`, each as likely as the others. In its prompts, all characters beyond ASCII are one token. */
function modelOf(replies: readonly string[]) {
  const assistant = 3;
  const first = 5 + ascii.length + 2;
  return tabularEngine({
    alphabet: [...ascii, "\n", "\uFFFD", ...replies],
    logit: (next, previous) => {
      if (previous === assistant) return next >= first ? 0 : -30;
      return previous >= first && next === 0 ? 30 : 0;
    },
  });
}

/** Trains ten steps. */
export async function expectRise(name: string, load: Load, replies: readonly string[]) {
  const rows: Order[] = [{ item: "book", count: 3 }];
  const engine = modelOf(replies);
  const experiment = defineExperiment<Order>({
    ...(await load()).default,
    train: fromRows("one", rows),
    validation: fromRows("one-validation", rows),
    config: {
      model: { lora_rank: 0 },
      rllm: {
        rollout: { n: 16 },
        workflow: { n_parallel_tasks: 4 }, // two of the agents start a program of 400 MB for each rollout
        trainer: {
          total_batches: 10,
          logger: [],
          run_dir: join(root, name),
          plot_every: 0,
          test_freq: 0,
          save_freq: 0,
        },
      },
      training: { learning_rate: 0.3, max_length: 1_000_000 },
      data: { train_batch_size: 1, max_prompt_length: 1_000_000, max_response_length: 256 },
    },
  });
  const { history } = await train(experiment, { engine: { engine, chat: engine.chat } });
  const metrics = history.map((step) => step.metrics);
  for (const kind of ["infrastructure", "agent", "reward"])
    expect(metrics.map((step) => step[`batch/failures/${kind}`])).toEqual(metrics.map(() => 0));
  const rewards = metrics.map((step) => step["reward/mean"]!);
  const late = rewards.slice(-3).reduce((sum, reward) => sum + reward / 3, 0);
  expect(late - rewards[0]!, rewards.join(" ")).toBeGreaterThan(0.25);
}

export const call = (name: string, input: object) =>
  `<tool_call>${JSON.stringify({ name, arguments: input })}</tool_call>`;
export const prices = (tool: string) => ["book", "apple"].map((item) => call(tool, { item }));
export const totals = ["36", "12", "3", "15", "I do not know."];
