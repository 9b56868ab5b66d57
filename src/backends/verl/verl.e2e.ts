/** verl's workers on a Ray cluster of this machine: two FSDP2 ranks on the CPU, compared with the local engine. */
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { composeConfig, prepareComposition } from "../../config/compose.ts";
import { makeTinyModel } from "../../python/run-python.fixture.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import type { Sequence } from "../../trajectories/types.ts";
import {
  assertClose,
  linearLoss,
  madeUpSequences,
  madeUpWeights,
  numTrained,
  plainDescent,
} from "../conformance/tools.ts";
import type { Engine, Learner, LearningEngine } from "../engine.ts";
import { openLocalEngine } from "../local/engine.ts";
import { openVerlEngine } from "./engine.ts";
import { verlEngineOptions } from "./options.ts";

const root = temporaryFolder("verl");
const warnings: string[] = [];
let verl: LearningEngine;
let local: Engine;
let learner: Learner;
let same: Learner;

beforeAll(async () => {
  const model = await makeTinyModel(join(root, "model"));
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
  ({ learner } = await verl.createPolicy({ adapter: { kind: "full" } }));
  ({ learner: same } = await local.createPolicy({ adapter: { kind: "full" } }));
}, 1_800_000);
afterAll(async () => {
  await verl?.close();
  await local?.close();
});

const lossOf = (sequences: readonly Sequence[], seed: number) =>
  linearLoss(sequences, madeUpWeights(numTrained(sequences), seed));

describe("verl's workers", () => {
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
