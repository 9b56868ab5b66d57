/** verl's workers on a Ray cluster of this machine: two FSDP2 ranks on the CPU, compared with the local engine. */
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { singleTurn } from "../../agents/single-turn.ts";
import { openChat } from "../../chat/open-chat.ts";
import { composeConfig, prepareComposition } from "../../config/compose.ts";
import { generated } from "../../data/generated.ts";
import { makeTinyModel } from "../../python/run-python.fixture.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { train } from "../../trainer/train.ts";
import { estimatorRuns, lossRuns, type NamedRun } from "../../trainer/update/every-algorithm.fixture.ts";
import type { Sequence } from "../../trajectories/types.ts";
import { learnerChecks } from "../conformance/conformance.ts";
import {
  assertClose,
  linearLoss,
  madeUpSequences,
  madeUpWeights,
  numTrained,
  plainDescent,
} from "../conformance/tools.ts";
import type { Engine, Learner, LearningEngine, Sampler } from "../engine.ts";
import { openLocalEngine } from "../local/engine.ts";
import { capabilities } from "./capabilities.ts";
import { openVerlEngine } from "./engine.ts";
import { verlEngineOptions } from "./options.ts";

const root = temporaryFolder("verl");
const warnings: string[] = [];
let model: string;
let verl: LearningEngine;
let local: Engine;
/** Samples from the model that both start from. */
let base: Sampler;
let closeSampling: Engine["close"];

beforeAll(async () => {
  model = await makeTinyModel(join(root, "model"));
  const overrides = [
    "rllm/backend=verl",
    `model.name=${model}`,
    "trainer.n_gpus_per_node=2",
    "trainer.device=cpu",
    "++actor_rollout_ref.actor.fsdp_config.dtype=float32",
    // Names of both kinds, for what the workers hold.
    "rllm.algorithm.kl_beta=0.01",
    "actor_rollout_ref.actor.clip_ratio=0.3",
    "actor_rollout_ref.actor.optim.lr=1e-3",
  ];
  await prepareComposition({ overrides });
  const options = verlEngineOptions(composeConfig({ overrides }), 2, {
    logFile: join(root, "driver.log"),
    warn: (text) => warnings.push(text),
  });
  verl = await openVerlEngine(options);
  local = await openLocalEngine({ model, device: "cpu", dtype: "float32", cacheDir: join(root, "cache") });
  const sampling = await openLocalEngine({ model, device: "cpu", dtype: "float32", cacheDir: join(root, "cache") });
  ({ sampler: base } = await sampling.createPolicy({ adapter: { kind: "none" } }));
  closeSampling = sampling.close;
}, 1_800_000);
afterAll(async () => {
  await verl?.close();
  await local?.close();
  await closeSampling?.();
});

const lossOf = (sequences: readonly Sequence[], seed: number) =>
  linearLoss(sequences, madeUpWeights(numTrained(sequences), seed));

describe("verl's workers", () => {
  let learner: Learner;
  let same: Learner;

  beforeAll(async () => {
    ({ learner } = await verl.createPolicy({ adapter: { kind: "full" } }));
    ({ learner: same } = await local.createPolicy({ adapter: { kind: "full" } }));
  });
  afterAll(async () => {
    await learner.close();
    await same.close();
  });

  it("hold the values of the keys with two names", async () => {
    const [finding] = (await verl.examine?.()) ?? [];
    expect(finding).not.toHaveProperty("fix");
    expect(finding?.detail).toMatch(/^4\d values with two names are the same in verl \(\d\d read from a worker\)/);
  });

  it("compute the log-probabilities, losses and gradients of the local engine, before and after steps", async () => {
    const sequences = madeUpSequences(local);
    for (const seed of [1, 2, 3]) {
      const loss = lossOf(sequences, seed);
      const [theirs, ours] = [
        await learner.forwardBackward(sequences, loss),
        await same.forwardBackward(sequences, loss),
      ];
      assertClose(theirs.outputs.logprobs, ours.outputs.logprobs, 1e-5, "log-probabilities");
      assertClose([theirs.loss / ours.loss], [1], 1e-5, "loss");
      const [their, our] = [await learner.optimStep(plainDescent(1e-2)), await same.optimStep(plainDescent(1e-2))];
      assertClose([their.gradNorm / our.gradNorm], [1], 1e-5, "gradient's norm");
    }
  });

  it("continue from a saved state as if nothing had happened", async () => {
    const sequences = madeUpSequences(local);
    const before = await learner.forward(sequences, {});
    await learner.saveState(join(root, "state"));
    await learner.forwardBackward(sequences, lossOf(sequences, 9));
    await learner.optimStep(plainDescent(1e-2));
    await learner.loadState(join(root, "state"), { optimizer: true });
    assertClose((await learner.forward(sequences, {})).logprobs, before.logprobs, 1e-7, "after loading");
  });

  it("export what the local engine loads", async () => {
    const sequences = madeUpSequences(local);
    await learner.export(join(root, "exported"), "merged");
    const { logprobs } = await learner.forward(sequences, {});
    const options = { model: join(root, "exported"), device: "cpu", dtype: "float32" } as const;
    const opened = await openLocalEngine({ ...options, cacheDir: join(root, "cache") });
    try {
      const again = await opened.createLearner({ adapter: { kind: "none" } });
      assertClose((await again.forward(sequences, {})).logprobs, logprobs, 1e-5, "the exported model");
    } finally {
      await opened.close();
    }
  });
});

/** `learner` of an engine, with samples of the model that it started from. */
const sampledByBase = (of: LearningEngine): Engine => ({
  ...of,
  capabilities: { ...local.capabilities, ...of.capabilities },
  async createPolicy(spec) {
    const { learner } = await of.createPolicy(spec);
    return { learner, sampler: { ...base, version: 0, load: async () => {} } };
  },
});

const named = (kind: string, runs: readonly NamedRun[]) =>
  runs.map(([name, overrides]): NamedRun => [`${kind} ${name}`, overrides]);

/** Metrics of two steps, each of two passes. */
async function metricsOf(name: string, of: LearningEngine, overrides: readonly string[]) {
  const engine = sampledByBase(of);
  const { history } = await train(
    {
      train: generated("toy", 8, (index) => ({ index })),
      workflow: singleTurn({
        prompt: ({ index }) => `say ${index}`,
        reward: (_row, { text }) => [...text].filter((letter) => letter >= "a" && letter <= "z").length / 8,
      }),
      config: {
        model: { name: model, lora_rank: 0 },
        rllm: {
          rollout: { n: 4 },
          trainer: { total_batches: 2, logger: [], save_freq: 0, test_freq: 0, run_dir: join(root, name) },
        },
        // With a smaller eps, the first step of a weight whose gradient is nearly 0 would be decided by rounding.
        training: { learning_rate: 1e-2, eps: 1e-3, ppo_epochs: 2 },
        data: { train_batch_size: 4, max_response_length: 8 },
      },
    },
    { engine: { engine, chat: openChat(model, composeConfig().config, () => {}) }, overrides: [...overrides] },
  );
  return history.map(({ metrics }) =>
    ["reward/mean", "actor/pg_loss", "actor/grad_norm", "critic/grad_norm"].map((name) => metrics[name] ?? 0),
  );
}

/** Set `HONE_EVERY_ALGORITHM=1` for all. */
const few = ["estimator gae", "estimator optimal_token_baseline", "estimator rloo", "loss gspo", "loss clip_cov"];
const runs = [...named("estimator", estimatorRuns), ...named("loss", lossRuns)].filter(
  ([name]) => process.env.HONE_EVERY_ALGORITHM || few.includes(name),
);

describe("the same samples give the metrics of the local engine", () => {
  it.each(runs)("with the %s", async (name, overrides) => {
    const theirs = await metricsOf(`verl ${name}`, verl, overrides);
    const ours = await metricsOf(`local ${name}`, local, overrides);
    for (const [step, values] of ours.entries()) {
      const scaled = (all: readonly number[]) =>
        all.map((value, index) => value / Math.max(1, Math.abs(values[index]!)));
      assertClose(scaled(theirs[step]!), scaled(values), 1e-5, `step ${step + 1}`);
    }
  });
});

describe("a learner of verl", () => {
  const checks = learnerChecks.filter(({ needs }) => needs?.(capabilities) ?? true);
  it.each(checks)("$name", async ({ name, check }) => {
    const path = (part: string) => join(root, `${checks.findIndex((one) => one.name === name)}-${part}`);
    await check(verl as Engine, { path, tolerance: 1e-4 });
  });
});
