import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import type { ConfigInput } from "../config/schema.ts";
import { readEpisode, type StoredEpisode } from "../tracking/episodes.ts";
import { packValues, type TokenValues, unpackValues } from "../tracking/json-lines.ts";
import { openToy, temporaryFolders, toy } from "./toy-experiment.fixture.ts";
import { train } from "./train.ts";

const { newFolder } = temporaryFolders("tokens");

/** The steps of a short run that were trained on, with their tokens. */
async function recorded(config: ConfigInput) {
  const folder = newFolder();
  const trainer = { total_batches: 2, save_freq: 0, test_freq: 0, run_dir: folder };
  await train(toy({ ...config, rllm: { ...config.rllm, trainer } }), { engine: openToy() });
  const lines = readFileSync(join(folder, "episodes", "step-000001.jsonl"), "utf8")
    .trim()
    .split("\n");
  return lines.flatMap((line) => {
    const [{ steps, training, advantage }] = readEpisode(line).trajectories as [StoredEpisode["trajectories"][0]];
    return [{ step: steps[0]!, advantage, training: training?.[0] as TokenValues | undefined }];
  });
}
const valuesOf = (packed: TokenValues["mask"] | undefined, { tokens }: { tokens: Int32Array }) =>
  Array.from(unpackValues(packed, tokens.length) ?? []);

test("one optimizer step: the trainer's log-probabilities are the sampler's, every ratio is 1", async () => {
  const all = await recorded({});
  const learned = all.filter(({ advantage }) => advantage !== 0);
  expect(learned.length).toBeGreaterThan(0);
  for (const { step, advantage, training } of learned) {
    expect(training).toMatchObject({ mask: 1, ratio: 1, clipped: 0 });
    expect(training!.advantage).toBeCloseTo(advantage as number, 5);
    for (const [token, value] of valuesOf(training!.logprobs, step).entries()) {
      expect(value).toBeCloseTo(step.logprobs[token]!, 5);
    }
  }
  // Without a signal nothing is evaluated.
  for (const { training } of all.filter(({ advantage }) => advantage === 0)) {
    expect(training).toEqual({ mask: 1, advantage: 0 });
  }
});

test("several epochs move the ratios, and clipped tokens are marked", async () => {
  const algorithm = { eps_clip: 0.01, kl_beta: 0.1 };
  const all = await recorded({ training: { ppo_epochs: 3, learning_rate: 1 }, rllm: { algorithm } } as ConfigInput);
  const ratios = all.flatMap(({ step, training }) => valuesOf(training?.ratio, step));
  const clipped = all.flatMap(({ step, training }) => valuesOf(training?.clipped, step));
  expect(ratios.some((ratio) => Math.abs(ratio - 1) > 0.01)).toBe(true);
  expect(new Set(clipped)).toEqual(new Set([0, 1]));
  expect(all[0]!.training!.reference).toBeDefined();
});

test.each([
  [[0.5, 0.5, 0.5], 0.5],
  [[Number.NaN, Number.NaN], undefined],
  [[], undefined],
  [[1, 2], "AACAPwAAAEA="],
  [[Number.NEGATIVE_INFINITY, Number.NEGATIVE_INFINITY], "AACA/wAAgP8="],
])("packs %j", (values, packed) => {
  expect(packValues(Float32Array.from(values))).toBe(packed);
  const back = unpackValues(packed, values.length);
  if (packed !== undefined) expect(Array.from(back!)).toEqual(values);
  expect(unpackValues("AACAPwAAAEA=", 3)).toBeUndefined();
});
