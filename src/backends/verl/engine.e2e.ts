/**
 * verl's workers on a Ray cluster of this machine: two FSDP2 ranks on the CPU, compared with the local engine. Rollout
 * servers, one for each rank, sample in verl's own way; they are the small ones of worker/hone_on_cpu.
 */
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { learnerChecks } from "../../../conformance/conformance.ts";
import {
  assertClose,
  linearLoss,
  madeUpSequences,
  madeUpWeights,
  numTrained,
  params,
  plainDescent,
} from "../../../conformance/tools.ts";
import type { CallParams } from "../../agents/types.ts";
import { singleTurn } from "../../agents/workflows.ts";
import { type PolicyLossOptions, policyLoss } from "../../algorithms/policy-loss.ts";
import type { Loss } from "../../algorithms/types.ts";
import { features } from "../../apps/server/features.ts";
import { startServer } from "../../apps/server/server.ts";
import { makeTinyModel } from "../../base/python.fixture.ts";
import { installedPython } from "../../base/python.ts";
import { uniforms } from "../../base/values.ts";
import { openTokenizer } from "../../chat/tokenizer.ts";
import { composeConfig } from "../../config/compose.ts";
import type { ConfigInput } from "../../config/schema.ts";
import { toYaml } from "../../config/yaml.ts";
import { fromRows, generated } from "../../data/dataset.ts";
import { nightly } from "../../nightly.fixture.ts";
import { dpo } from "../../supervised/dpo.ts";
import { sft } from "../../supervised/sft.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { train } from "../../trainer/train.ts";
import { estimatorRuns, lossRuns, type NamedRun } from "../../trainer/update.fixture.ts";
import { totalsOf } from "../../trajectories/batch.ts";
import type { Sequence, TrainingBatch } from "../../trajectories/types.ts";
import { openChat } from "../backends.ts";
import type { Engine, Learner, LearningEngine, Sample, Sampler } from "../engine.ts";
import { openLocalEngine } from "../local/engine.ts";
import { servedEngine } from "../servers/fake-policy-server.fixture.ts";
import { nativeLoss, openVerlEngine, type VerlEngine } from "./engine.ts";
import { capabilities, verlEngineOptions } from "./options.ts";

const root = temporaryFolder("verl");
const warnings: string[] = [];
let model: string;
let verl: VerlEngine;
let local: Engine;
/** Samples from the model that both start from. */
let base: Sampler;
let closeSampling: Engine["close"];

let overrides: string[];

beforeAll(async () => {
  model = await makeTinyModel(join(root, "model"));
  overrides = [
    "rllm/backend=verl",
    `model.name=${model}`,
    "trainer.n_gpus_per_node=2",
    "trainer.device=cpu",
    "++actor_rollout_ref.actor.fsdp_config.dtype=float32",
    // Several micro-batches.
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=48",
    // Names of both kinds, for what the workers hold.
    "rllm.algorithm.kl_beta=0.01",
    "actor_rollout_ref.actor.clip_ratio=0.3",
    "actor_rollout_ref.actor.optim.lr=1e-3",
    "actor_rollout_ref.rollout.name=small",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "actor_rollout_ref.model.external_lib=hone_on_cpu.small_rollout",
  ];
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
  vi.unstubAllEnvs();
  await verl?.close();
  await local?.close();
  await closeSampling?.();
});

const lossOf = (sequences: readonly Sequence[], seed: number) =>
  linearLoss(sequences, madeUpWeights(numTrained(sequences), seed));

const lossOptions: PolicyLossOptions = {
  ...{ lossFn: "ppo", epsClip: 0.2, epsClipHigh: 0.28, aggMode: null },
};

/** Replies with old log-probabilities at some distance, so that some tokens are clipped. */
async function madeUpBatch(engine: Engine, learner: Learner, { weighted = true }): Promise<TrainingBatch> {
  const sequences = madeUpSequences(engine);
  const { logprobs, offsets } = await learner.forward(sequences, {});
  const random = uniforms(7);
  const made = (to: (value: number) => number) => logprobs.map(to);
  return {
    ...{ sequences, offsets, samplerLogprobs: logprobs, totals: totalsOf(offsets) },
    advantages: made(() => random() * 4 - 2),
    oldLogprobs: made((logprob) => logprob + random() - 0.5),
    ...(weighted ? { rolloutWeights: made(() => 2 * random()) } : {}),
    groups: Int32Array.from(sequences.keys()),
    roles: sequences.map(() => "solver"),
  };
}

/** The loss without its native form, and with the opposite gradient. */
function minus({ hosted: _, ...loss }: Loss): Loss {
  return {
    ...loss,
    evaluate(outputs, sequences) {
      const value = loss.evaluate(outputs, sequences);
      return { ...value, gradient: { logprobs: value.gradient.logprobs.map((slope) => -slope) } };
    },
  };
}

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

  it("get the same configuration from a run's own config.yaml", () => {
    const file = join(root, "config.yaml");
    const { tree, stored, origins } = composeConfig({ overrides });
    writeFileSync(file, toYaml(stored, origins, { unresolved: true }));
    expect(composeConfig({ files: [file] }).tree).toEqual(tree);
  });

  it("config/verl is the configuration of the verl that Hone installs", () => {
    vi.stubEnv("HONE_VERL_PYTHON", installedPython("verl"));
    const { tree } = composeConfig({ overrides: ["rllm/backend=verl"] });
    vi.stubEnv("HONE_VERL_PYTHON", "");
    expect(composeConfig({ overrides: ["rllm/backend=verl"] }).tree).toEqual(tree);
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
      // Steps amplify rounding, which depends on the processor.
      const tolerance = seed === 1 ? 1e-5 : 3e-5;
      assertClose(theirs.outputs.logprobs, ours.outputs.logprobs, tolerance, `log-probabilities, seed ${seed}`);
      assertClose([theirs.loss / ours.loss], [1], 1e-5, "loss");
      const [their, our] = [await learner.optimStep(plainDescent(1e-2)), await same.optimStep(plainDescent(1e-2))];
      assertClose([their.gradNorm / our.gradNorm], [1], 1e-5, "gradient's norm");
    }
  });

  it.each([
    ["vanilla", { lossFn: "ppo" }],
    ["vanilla", { lossFn: "ppo", constants: { clip_ratio_c: 1.2 }, aggMode: "seq-mean-token-sum" }],
    ["vanilla", { lossFn: "importance_sampling" }],
    ["cispo", { lossFn: "cispo", aggMode: "seq-mean-token-sum-norm" }],
    ["gpg", { lossFn: "cross_entropy" }],
    ["gspo", { lossFn: "gspo" }],
    ["sapo", { lossFn: "sapo" }],
    ["dro", { lossFn: "dro" }],
  ] as const)("compute verl's own %s with the gradient of Hone's %o", async (name, options) => {
    // verl has one weight for the quadratic term of all tokens.
    const batch = await madeUpBatch(local, same, { weighted: name !== "dro" });
    const loss = policyLoss(batch, { ...lossOptions, ...options });
    expect(nativeLoss(loss, batch.offsets)?.name).toBe(name);
    const nativeLosses = async () => (await verl.stats())["train/native_losses"]!;
    const before = await nativeLosses();
    const native = await learner.forwardBackward(batch.sequences, loss);
    expect(await nativeLosses()).toBe(before + 1);
    const { gradNorm } = await learner.optimStep(plainDescent(0));
    await learner.forwardBackward(batch.sequences, loss);
    const linear = await learner.forwardBackward(batch.sequences, minus(loss));
    const difference = (await learner.optimStep(plainDescent(0))).gradNorm;
    expect(gradNorm).toBeGreaterThan(0.01);
    expect(difference / gradNorm).toBeLessThan(1e-6);
    assertClose(native.outputs.logprobs, linear.outputs.logprobs, 1e-6, "log-probabilities");
    expect(native.loss).toBeCloseTo(linear.loss, 6);
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

describe("verl's rollout servers", () => {
  let served: Engine;
  beforeAll(() => {
    const encode = (text: string) => openTokenizer(model).encode(text);
    served = servedEngine(verl, { ...verl.rollouts!, folder: join(root, "published"), encode });
  });

  it("end a request when new weights arrive, which continues with them", async () => {
    const { learner, sampler } = await served.createPolicy({ adapter: { kind: "full" } });
    try {
      expect(sampler.servers).toMatch(/^vLLM at http:.*, http:.*, which gets weights by verl's checkpoint engine$/);
      const sequences = madeUpSequences(local);
      await learner.forwardBackward(sequences, lossOf(sequences, 4));
      await learner.optimStep(plainDescent(1e-2));
      const prompt = Int32Array.of(5, 6, 7);
      const stop = new AbortController();
      let loaded: Promise<void> | undefined;
      let after = 0;
      const onToken = () => {
        loaded ??= learner.publish().then((published) => sampler.load(published));
        if (sampler.version === 1 && ++after === 3) stop.abort();
      };
      const long = { prompt, params: params({ maxTokens: 100_000, ignoreEos: true }) };
      const samples: Sample[] = [];
      for await (const sample of sampler.sample([long], { signal: stop.signal, onToken })) samples.push(sample);
      await loaded;
      const { tokens, logprobs, tokenVersions, policyVersion } = samples[0]!;
      expect(policyVersion).toBe(1);
      expect([...new Set(tokenVersions)]).toEqual([0, 1]);
      const first = tokenVersions!.indexOf(1);
      const whole = Int32Array.of(...prompt, ...tokens);
      const trained = new Uint8Array(whole.length - 1).fill(1, prompt.length + first - 1);
      const own = await learner.forward([{ tokens: whole, trained }], {});
      assertClose(logprobs.subarray(first), own.logprobs, 1e-4, "log-probabilities of the new weights");
    } finally {
      await learner.close();
    }
  });

  it("get weights again that they missed", async () => {
    const { learner, sampler } = await served.createPolicy({ adapter: { kind: "full" } });
    try {
      const sequences = madeUpSequences(local);
      await learner.forwardBackward(sequences, lossOf(sequences, 6));
      await learner.optimStep(plainDescent(1e-1));
      writeFileSync(join(model, "misses-an-update"), "");
      await sampler.load(await learner.publish());
      const { "rollout/sync_repeated": repeated, "rollout/sync_probe_difference": difference } = await served.stats();
      expect(repeated).toBe(1);
      expect(difference).toBeLessThan(1e-4);
    } finally {
      await learner.close();
    }
  });

  it("sleep while the workers train, and sample with each version", async () => {
    const { history } = await train(toyExperiment("rollouts"), { engine: { engine: served, chat: await toyChat() } });
    expect(history.map(({ metrics }) => metrics["rollout/sync_probe_difference"]! < 1e-4)).toEqual([true, true]);
    expect(history.map(({ metrics }) => metrics["rollout/servers"])).toEqual([2, 2]);
  });

  it("sample while the workers train, and continue replies with new weights", async () => {
    const toy = toyExperiment("asynchronous");
    const async_training = { enable: true, mini_batch_size: 4, staleness_threshold: 1, partial_rollout: true };
    const rllm = { ...toy.config.rllm, async_training, workflow: { n_parallel_tasks: 16 } };
    // Replies of the second step are long enough to be running when the first update ends.
    let started = 0;
    const workflow: typeof toy.workflow = (task, context) =>
      toySingleTurn({ maxTokens: started++ < 16 ? 8 : 256 })(task, context);
    const training = { ...toy.config.training, ppo_epochs: 1 };
    const config = { ...toy.config, rllm, training, data: { max_response_length: 256 } };
    const { history } = await train(
      { ...toy, config, workflow },
      { engine: { engine: served, chat: await toyChat() } },
    );
    expect(history.map(({ metrics }) => metrics["async/weight_version"])).toEqual([0, 1]);
    expect(history.map(({ metrics }) => metrics["async/staleness_max"])).toEqual([0, 1]);
    const folder = join(root, "asynchronous", "episodes");
    const episodes = readdirSync(folder).map((name) => readFileSync(join(folder, name), "utf8"));
    expect(episodes.join("")).toMatch(/"tokenVersions":\[0(,0)*,1(,1)*\]/);
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

const toySingleTurn = (params: CallParams = {}) =>
  singleTurn({
    prompt: ({ index }: { index: number }) => `say ${index}`,
    reward: (_row, { text }) => [...text].filter((letter) => letter >= "a" && letter <= "z").length / 8,
    params,
  });

/** Two steps, each of two passes. */
const toyExperiment = (name: string) => ({
  train: generated("toy", 8, (index) => ({ index })),
  workflow: toySingleTurn(),
  config: {
    model: { name: model, lora_rank: 0 },
    rllm: {
      rollout: { n: 4 },
      trainer: { total_batches: 2, logger: [], save_freq: 0, test_freq: 0, run_dir: join(root, name) },
    },
    // Adam with a small eps amplifies rounding, because it divides small gradients by their own size. With 1e-3, the local
    // engine's gradient norm in step 2 of kl_cov changes by 1.2e-5 (relative) with the size of its micro-batches, and verl's
    // differs by 2e-5. With this eps, these differences are 7e-7 and 1.4e-6.
    training: { learning_rate: 0.1, eps: 0.1, ppo_epochs: 2 },
    data: { train_batch_size: 4, max_response_length: 8 },
  },
});
const toyChat = () => openChat(model, composeConfig().config, () => {});

async function metricsOf(name: string, of: LearningEngine, overrides: readonly string[]) {
  const engine = sampledByBase(of);
  const { history } = await train(toyExperiment(name), {
    engine: { engine, chat: await toyChat() },
    overrides: [...overrides],
  });
  return history.map(({ metrics }) =>
    ["reward/mean", "actor/pg_loss", "actor/grad_norm", "critic/grad_norm", "distillation/teacher_kl"].map(
      (name) => metrics[name] ?? 0,
    ),
  );
}

/** Scaled, because losses and norms are of different sizes. */
async function assertSame(name: string, overrides: readonly string[], tolerance: number): Promise<void> {
  const theirs = await metricsOf(`verl ${name}`, verl, overrides);
  const ours = await metricsOf(`local ${name}`, local, overrides);
  for (const [step, values] of ours.entries()) {
    const scaled = (all: readonly number[]) => all.map((value, index) => value / Math.max(1, Math.abs(values[index]!)));
    assertClose(scaled(theirs[step]!), scaled(values), tolerance, `step ${step + 1}`);
  }
}

/** A critic, token concentrations, and a mark on tokens of the whole batch. */
const few = ["estimator gae", "estimator optimal_token_baseline", "loss clip_cov"];
const runs = [...named("estimator", estimatorRuns), ...named("loss", lossRuns)].filter(
  ([name]) => nightly || few.includes(name),
);

describe("the same samples give the metrics of the local engine", () => {
  it.each(runs)("with the %s", (name, overrides) => assertSame(name, overrides, 1e-5));
});

describe.runIf(nightly)("a teacher on a server gives the metrics of the local engine", () => {
  let url = "";
  let close = async () => {};
  beforeAll(async () => {
    const teacher = await openLocalEngine({
      model: await makeTinyModel(join(root, "teacher"), 1),
      ...{ device: "cpu", dtype: "float32", cacheDir: join(root, "cache") },
    });
    const server = await startServer({
      ...{ engines: [{ names: ["teacher"], engine: teacher }], host: "127.0.0.1", port: 0, apiKey: null },
      ...{ stateFolder: join(root, "teacher-state"), features },
    });
    url = server.url;
    close = async () => {
      await server.close();
      await teacher.close();
    };
  });
  afterAll(() => close());

  it.each([
    ["k1", "true"],
    ["k3", "false"],
    ["k2", "false"],
  ])("with %s, use_policy_gradient=%s", async (name, byPolicyGradient) => {
    const loss = "distillation.distillation_loss";
    const overrides = [
      "distillation.enabled=true",
      `+distillation.teacher_models.server={base_url: "${url}/v1", model: teacher}`,
      `${loss}.loss_mode=${name}`,
      `${loss}.use_policy_gradient=${byPolicyGradient}`,
    ];
    await assertSame(`teacher ${name}`, overrides, 2e-5);
  });
});

/** Losses and gradient norms of three steps of TRL's trainers, as in src/supervised/sft.trl.e2e.ts. */
interface TrlRun {
  lossType: string;
  beta?: number;
  steps: { loss: number; gradNorm: number }[];
}
type Rows = Record<string, unknown>[];
const trl = JSON.parse(readFileSync(new URL("../../supervised/trl.fixture.json", import.meta.url), "utf8")) as {
  sft: (TrlRun & { name: string; rows: Rows })[];
  dpo: { rows: Rows; runs: TrlRun[] };
};

describe.runIf(nightly)("rows and pairs give the losses of TRL", () => {
  async function compare(make: typeof sft, name: string, rows: Rows, { steps }: TrlRun, overrides: string[]) {
    const config: ConfigInput = {
      model: { name: model, lora_rank: 0 },
      rllm: { trainer: { logger: [], save_freq: 0, plot_every: 0, run_dir: join(root, `trl-${name}`) } },
      training: { learning_rate: 3e-3, lr_schedule: "constant" },
      data: { train_batch_size: 4, shuffle: false },
    };
    const { history } = await train(make({ data: fromRows("rows", rows), config }), {
      engine: { engine: sampledByBase(verl), chat: await toyChat() },
      overrides,
    });
    expect(history).toHaveLength(steps.length);
    for (const [index, { loss, gradNorm }] of steps.entries()) {
      const { metrics } = history[index]!;
      expect(Math.abs(metrics["actor/loss"]! - loss)).toBeLessThan(1e-5 * Math.max(1, Math.abs(loss)));
      expect(Math.abs(metrics["actor/grad_norm"]! - gradNorm)).toBeLessThan(1e-4 * gradNorm + 1e-6);
    }
  }

  it.each(trl.sft)("sft: $name", ({ name, rows, ...run }) =>
    compare(sft, name, rows, run, [`sft.loss_type=${run.lossType}`]),
  );
  it.each(trl.dpo.runs.filter(({ lossType }) => lossType === "sigmoid"))("dpo: beta $beta", (run) =>
    compare(dpo, `dpo-${run.beta}`, trl.dpo.rows, run, [`dpo.beta=${run.beta}`]),
  );
});

describe("a learner of verl", () => {
  const checks = learnerChecks.filter(({ needs }) => needs?.(capabilities) ?? true);
  it.each(checks)("$name", async ({ name, check }) => {
    const path = (part: string) => join(root, `${checks.findIndex((one) => one.name === name)}-${part}`);
    await check(verl as Engine, { path, tolerance: 1e-4 });
  });
});

// The last test, because it ends the driver.
it("a rollout server that dies while it loads weights ends the run with an error message", async () => {
  const { learner } = await verl.createPolicy({ adapter: { kind: "full" } });
  const { version } = await learner.publish();
  writeFileSync(join(model, "dies-while-loading"), "");
  await expect(verl.rollouts!.source.update(version)).rejects.toThrow(
    /^verl's rollout server at .* ended while it loaded version 1 of the weights; worker.log in the run folder has its output$/,
  );
});
