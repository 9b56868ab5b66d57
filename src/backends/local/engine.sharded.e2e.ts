/** Two processes train one model on the CPU, and a third one samples. */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { conformance } from "../../../conformance/conformance.ts";
import { samplerChecks } from "../../../conformance/sampler.ts";
import { linearLoss, madeUpSequences, madeUpWeights, numTrained } from "../../../conformance/tools.ts";
import { singleTurn } from "../../agents/workflows.ts";
import { ownerMark } from "../../base/files.ts";
import { makeTinyModel } from "../../base/python.fixture.ts";
import { mean } from "../../base/values.ts";
import { composeConfig } from "../../config/compose.ts";
import { generated } from "../../data/dataset.ts";
import { nightly } from "../../nightly.fixture.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { train } from "../../trainer/train.ts";
import { openChat } from "../backends.ts";
import type { Engine } from "../engine.ts";
import { composeEngine } from "../engine-parts.ts";
import { openLocalEngine } from "./engine.ts";
import { shardedCapabilities } from "./options.ts";
import { workerPolicies } from "./worker-sampler.ts";

type Options = Parameters<typeof openLocalEngine>[0];

const variants: [string, Partial<Options>][] = [
  ["two ranks for each sequence", { sequenceParallel: 2 }],
  ["moments offloaded", { offloadOptimizer: true }],
  ["weights offloaded", { offloadParameters: true }],
  ["all defaults", {}],
];
const every = (["zero1", "zero2", "zero3", "fsdp"] as const).flatMap((sharding) =>
  variants
    .filter(([, { offloadParameters }]) => !offloadParameters || sharding === "fsdp" || sharding === "zero3")
    .map(([name, variant]) => ({ name: `${sharding}, ${name}`, more: { sharding, ...variant } })),
);
/** The last one stays open for the other tests. */
const shardings = nightly ? every : every.slice(-1);

const root = temporaryFolder("sharded");
let options: Options;
let engine: Engine;

beforeAll(async () => {
  const model = await makeTinyModel(join(root, "model"));
  const common = { model, device: "cpu", dtype: "float32", threads: 1, cacheDir: join(root, "cache") } as const;
  options = { ...common, processes: 2, microBatchTokens: 32, logFile: join(root, "worker.log") };
});
afterAll(() => engine?.close());

describe.each(shardings)("two processes, $name", ({ name: sharding, more }) => {
  beforeAll(async () => {
    await engine?.close();
    const all = { ...options, ...more };
    const trainer = await openLocalEngine(all);
    const samplers = await workerPolicies(trainer, { ...all, folder: join(root, "published") });
    engine = composeEngine({ trainer, samplers });
  });
  const ofSampler = new Set(samplerChecks.map(({ name }) => name));
  const checks = conformance.filter(
    ({ name, needs }) => !ofSampler.has(name) && (needs?.(shardedCapabilities) ?? true),
  );
  it.each(checks.map((check, index) => ({ ...check, index })))("$name", async ({ check, index }) => {
    await check(engine, {
      path: (file) => join(root, `${sharding}-${index}-${file}`),
      tolerance: 1e-4,
    });
  });
});

const share = (reply: string) => [...reply].filter((letter) => letter >= "a" && letter <= "z").length / 8;

async function rewards(name: string, of: Engine): Promise<number[]> {
  const { history } = await train(
    {
      train: generated("toy", 256, (index) => ({ index })),
      workflow: singleTurn({ prompt: ({ index }) => `say ${index}`, reward: (_, { text }) => share(text) }),
      config: {
        model: { name: options.model, lora_rank: 4 },
        rllm: {
          rollout: { n: 8 },
          trainer: { total_batches: 8, logger: [], save_freq: 0, test_freq: 0, run_dir: join(root, name) },
        },
        training: { learning_rate: 0.03 },
        data: { train_batch_size: 4, max_response_length: 8 },
      },
    },
    { engine: { engine: of, chat: await openChat(of.model.directory, composeConfig().config, () => {}) } },
  );
  return history.map(({ metrics }) => metrics["reward/mean"] ?? Number.NaN);
}

it("learns with the same rewards as one process, except for rounding", async () => {
  const several = await rewards("two", engine);
  const alone = await openLocalEngine({ ...options, processes: 1, logFile: join(root, "alone.log") });
  try {
    const expected = await rewards("one", alone);
    expect(several.slice(0, 4)).toEqual(expected.slice(0, 4));
    // At this learning rate, steps amplify rounding until it changes single samples.
    for (const [step, reward] of several.entries()) expect(Math.abs(reward - expected[step]!)).toBeLessThan(0.1);
  } finally {
    await alone.close();
  }
  expect(mean(several.slice(-2)) - mean(several.slice(0, 2))).toBeGreaterThan(0.2);
});

/** The ranks that this test has started. */
function ranks(): number[] {
  return readdirSync("/proc").flatMap((entry) => {
    if (!/^\d+$/.test(entry)) return [];
    try {
      const [command, environment] = ["cmdline", "environ"].map((file) =>
        readFileSync(`/proc/${entry}/${file}`, "utf8").split("\0"),
      );
      const isOurs = environment!.includes(`HONE_OWNER=${ownerMark}`);
      return isOurs && command!.includes("hone_sharded.rank") ? [Number(entry)] : [];
    } catch {
      return []; // It has ended meanwhile.
    }
  });
}

// The last test: nothing is left of the engine.
it("ends with a sentence when one rank is killed in the middle of a step", async () => {
  const { learner } = await engine.createPolicy({ adapter: { kind: "full" } });
  const sequences = madeUpSequences(engine);
  const loss = linearLoss(sequences, madeUpWeights(numTrained(sequences), 1));
  const killing = {
    ...loss,
    evaluate: (...given: Parameters<typeof loss.evaluate>) => {
      process.kill(ranks().at(-1)!, "SIGKILL");
      return loss.evaluate(...given);
    },
  };
  expect(ranks()).toHaveLength(2);
  await expect(learner.forwardBackward(sequences, killing)).rejects.toThrow(
    /worker ended with exit code 137: .*(another program killed it|memory ran out).*\.\n(.*\n)*.*rank [01] of 2 \(process \d+\) ended by SIGKILL; the other rank was ended too/,
  );
  expect(ranks()).toEqual([]);
});
