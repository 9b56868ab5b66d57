/**
 * Each family of models trains two steps of GRPO through the local engine, on a tiny random model. The results are the column
 * "GRPO" of docs/reference/models.md. `HONE_NIGHTLY=1 HONE_RECORD=1` measures all and records them.
 */
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, expect, test } from "vitest";
import { singleTurn } from "../agents/workflows.ts";
import { UserError } from "../base/errors.ts";
import { runPython } from "../base/python.fixture.ts";
import { generated } from "../data/dataset.ts";
import { nightly } from "../nightly.fixture.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import { train } from "./train.ts";

const file = fileURLToPath(new URL("../../worker/tests/families/record.json", import.meta.url));
const read = () =>
  JSON.parse(readFileSync(file, "utf8")) as {
    text: { kind: string }[];
    grpo: Record<string, true | string>;
  };
const recorded = read();
const kinds = recorded.text.map(({ kind }) => kind);
const root = temporaryFolder("families");
const measured: Record<string, true | string> = {};

beforeAll(async () => {
  if (nightly) await runPython("make_family_models.py", [root, ...kinds]);
}, 1_800_000);

afterAll(() => {
  if (process.env.HONE_RECORD !== "1") return;
  const now = read();
  writeFileSync(file, `${JSON.stringify(sorted({ ...now, grpo: sorted({ ...now.grpo, ...measured }) }), null, 1)}\n`);
});

const sorted = (values: object) => Object.fromEntries(Object.entries(values).sort(([a], [b]) => (a < b ? -1 : 1)));

async function twoSteps(kind: string, rank: number): Promise<true | string> {
  const { history } = await train({
    train: generated("letters", 64, (index) => ({ index })),
    workflow: singleTurn<{ index: number }>({
      prompt: ({ index }) => `say ${index}`,
      // Nearly any two replies have different rewards, so that there is a gradient.
      reward: (_row, { text }) => ([...text].reduce((sum, letter) => sum + letter.charCodeAt(0), 0) % 10) / 10,
    }),
    config: {
      rllm: {
        rollout: { n: 4 },
        trainer: {
          total_batches: 2,
          logger: [],
          save_freq: 0,
          plot_every: 0,
          run_dir: join(root, `run-${kind}-${rank}`),
        },
      },
      model: { name: join(root, kind), lora_rank: rank },
      local: { dtype: "float32", device: "cpu", threads: 1 },
      training: { learning_rate: 0.01 },
      data: { train_batch_size: 4, max_response_length: 8 },
    },
  });
  expect(history).toHaveLength(2);
  const problems = history.flatMap(({ metrics }, index) => {
    const bad = Object.entries(metrics).filter(([, value]) => !Number.isFinite(value));
    const { "actor/grad_norm": norm = 0, "rollout/logprob_diff_max": difference = 0 } = metrics;
    return [
      ...bad.map(([name, value]) => `${name} of step ${index + 1} is ${value}`),
      ...(norm > 0 ? [] : [`the gradient of step ${index + 1} has the norm ${norm}`]),
      ...(difference < 2e-4
        ? []
        : [`sampled log-probabilities of step ${index + 1} differ by ${difference.toExponential(1)}`]),
    ];
  });
  return problems.length === 0 || problems.join("; ");
}

async function measure(kind: string): Promise<true | string> {
  try {
    return await twoSteps(kind, 8);
  } catch (error) {
    if (!(error instanceof UserError)) throw error;
    const all = await twoSteps(kind, 0);
    return all === true ? `all weights; LoRA: ${error.message}` : all;
  }
}

test.runIf(nightly).each(kinds)("%s trains two steps of GRPO", async (kind) => {
  measured[kind] = await measure(kind);
  if (process.env.HONE_RECORD !== "1") expect(measured[kind]).toEqual(recorded.grpo[kind]);
});
