// Slow: runs are killed and resumed.
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { Engine, Policy, PolicySpec } from "../backends/engine.ts";
import { RunError, UserError } from "../base/errors.ts";
import type { ConfigInput } from "../config/schema.ts";
import { nightly } from "../nightly.fixture.ts";
import { countOperations, metricLines, openToy, temporaryFolders, toy } from "./toy-experiment.fixture.ts";
import { train } from "./train.ts";

const { newFolder, root } = temporaryFolders("train");

describe("train", () => {
  it("raises the reward, validates before, during and after, and keeps checkpoints", async () => {
    const folder = newFolder();
    const experiment = toy({ rllm: { trainer: { total_batches: 12 } } });
    const summary = await train(experiment, { engine: openToy(), overrides: [`rllm.trainer.run_dir=${folder}`] });
    const rewards = summary.history.map(({ metrics }) => metrics["reward/mean"]!);
    expect(summary).toMatchObject({ exitCode: 0, step: 12, folder });
    expect(rewards.at(-1)! - rewards[0]!).toBeGreaterThan(0.3);
    const validated = metricLines(folder).filter(({ kind }) => kind === "validation");
    expect(validated.map(({ step }) => step)).toEqual([0, 3, 6, 9, 12]);
    expect(validated.at(-1)!["val/reward"]).toBe(summary.validation["val/reward"]);
    expect(validated.at(-1)!["val/reward"] as number).toBeGreaterThan(validated[0]!["val/reward"] as number);
  });

  it("gives the same run regardless of the operation at which it is killed", { timeout: 90_000 }, async () => {
    const whole = newFolder();
    await train(toy(), { engine: openToy(), overrides: [`rllm.trainer.run_dir=${whole}`] });
    const operations = countOperations();
    await train(toy(), { engine: operations.toy, overrides: [`rllm.trainer.run_dir=${newFolder()}`] });
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.integer({ min: 1, max: operations.count() }), { minLength: 1, maxLength: 3 }),
        async (instants) => {
          const folder = newFolder();
          const overrides = [`rllm.trainer.run_dir=${folder}`];
          for (const instant of instants) {
            await train(toy(), { engine: countOperations(instant).toy, overrides }).catch((error) => {
              expect(error).toMatchObject({ message: "killed" });
            });
          }
          await train(toy(), { engine: openToy(), overrides });
          expect(metricLines(folder)).toEqual(metricLines(whole));
        },
      ),
      { numRuns: nightly ? 50 : 10, seed: 1 },
    );
  });

  it("lets the sampler sleep while the learner trains", async () => {
    const { engine, chat } = openToy();
    const events: string[] = [];
    const note = (name: string) => async () => void events.push(name);
    async function createPolicy(spec: PolicySpec): Promise<Policy> {
      const { sampler, learner } = await engine.createPolicy(spec);
      const { load } = sampler;
      const { optimStep } = learner;
      Object.assign(sampler, { sleep: note("sleep"), wake: note("wake") });
      sampler.load = (published) => note("load")().then(() => load(published));
      learner.optimStep = (adam) => note("step")().then(() => optimStep(adam));
      return { sampler, learner };
    }
    const overrides = [`rllm.trainer.run_dir=${newFolder()}`, "rllm.trainer.total_batches=2"];
    await train(toy(), { engine: { engine: { ...engine, createPolicy }, chat }, overrides });
    const step = ["sleep", "step", "wake", "load"];
    expect(events).toEqual([...step, ...step]);
  });

  it.each([
    [
      "several minibatches and epochs",
      { training: { num_minibatches: 2, ppo_epochs: 2 } },
      { "update/optimizer_steps": 4 },
    ],
    ["the sampler's log-probabilities", { rllm: { algorithm: { rollout_correction: { bypass_mode: true } } } }, {}],
    ["a KL to the base model", { rllm: { algorithm: { kl_beta: 0.1 } } }, { "actor/kl_loss": 0 }],
    ["importance sampling", { rllm: { algorithm: { loss_fn: "importance_sampling" } } }, {}],
  ] as const)("trains with %s", async (_, config, first) => {
    const folder = newFolder();
    const overrides = [`rllm.trainer.run_dir=${folder}`];
    const { history } = await train(toy(config as ConfigInput), { engine: openToy(), overrides });
    expect(history[0]!.metrics).toMatchObject(first);
    expect(history.at(-1)!.metrics["reward/mean"]!).toBeGreaterThan(history[0]!.metrics["reward/mean"]!);
    expect(history[0]!.metrics["rollout/logprob_diff_max"]!).toBeLessThan(1e-5);
  });

  it("takes no optimizer step if no group has a signal, and reports it", async () => {
    const overrides = [`rllm.trainer.run_dir=${newFolder()}`];
    const { history } = await train(
      toy({}, () => 1),
      { engine: openToy(), overrides },
    );
    expect(history[0]!.metrics).toMatchObject({ "update/optimizer_steps": 0, "update/without_signal": 1 });
  });

  it.each(["rllm.rollout.n=1000000000", "data.max_response_length=1000000000"])(
    "refuses %s before anything is opened",
    async (override) => {
      const folder = newFolder();
      const failed = train(toy(), { engine: openToy(), overrides: [`rllm.trainer.run_dir=${folder}`, override] });
      await expect(failed).rejects.toThrow(/a step would hold up to .* sampled tokens/);
      expect(existsSync(folder)).toBe(false);
    },
  );

  it("measures without training and without a run folder", async () => {
    const summary = await train(toy(), { engine: openToy(), evaluate: true, overrides: ["rllm.rollout.n_val=2"] });
    expect(summary).toMatchObject({ exitCode: 0, folder: null, step: 0 });
    expect(Object.keys(summary.validation)).toContain("val/toy-validation/pass@2");
  });

  it("stops and names the task if a reward fails; with raise_on_error=false it excludes failed rollouts from the rewards", async () => {
    const broken = toy({ rllm: { workflow: { retry_limit: 0 } } }, (text) => (text.startsWith("b") ? Number.NaN : 1));
    const overrides = [`rllm.trainer.run_dir=${newFolder()}`];
    await expect(train(broken, { engine: openToy(), overrides })).rejects.toThrow(/toy.*NaN/s);
    const lenient = ["rllm.workflow.raise_on_error=false", `rllm.trainer.run_dir=${newFolder()}`];
    const { history } = await train(broken, { engine: openToy(), overrides: lenient });
    expect(history[0]!.metrics["batch/failed_episodes"]!).toBeGreaterThan(0);
    expect(history[0]!.metrics["reward/mean"]).toBe(1);
  });

  it("a failure to close does not hide why the run failed, and fails a run that did not", async () => {
    const failing = () => {
      const { engine, chat } = openToy();
      const createPolicy = async (spec: PolicySpec): Promise<Policy> => {
        const { sampler, learner } = await engine.createPolicy(spec);
        const close = async () => {
          throw new RunError("the policy does not close");
        };
        return { sampler, learner: { ...learner, close } };
      };
      return { engine: { ...engine, createPolicy }, chat };
    };
    const overrides = [`rllm.trainer.run_dir=${newFolder()}`];
    const broken = toy({ rllm: { workflow: { retry_limit: 0 } } }, () => Number.NaN);
    await expect(train(broken, { engine: failing(), overrides })).rejects.toThrow(/NaN/);
    const whole = [`rllm.trainer.run_dir=${newFolder()}`];
    await expect(train(toy(), { engine: failing(), overrides: whole })).rejects.toThrow("the policy does not close");
  });

  it("logs readable episodes and plots their lengths if configured", async () => {
    const [folder, logs] = [newFolder(), newFolder()];
    const trainer = { total_batches: 2, plot_every: 2, run_dir: folder };
    const episode_logging = { log_episodes: true, episode_log_dir: logs };
    await train(toy({ rllm: { trainer, episode_logging } }), { engine: openToy() });
    const names = ["entropy", "length", "lengths-step-000002", "reward"];
    expect(readdirSync(join(folder, "plots"))).toEqual(names.flatMap((name) => [`${name}.png`, `${name}.svg`]));
    expect(readdirSync(join(logs, "episodes")).sort()).toEqual([
      "train_step_1_epoch_0",
      "train_step_2_epoch_0",
      "val_step_0_epoch_0",
      "val_step_2_epoch_0",
    ]);
    const summary = readFileSync(join(logs, "episodes", "train_step_1_epoch_0", "batch_summary.json"), "utf8");
    expect(JSON.parse(summary)).toMatchObject({ num_episodes: 16, mode: "train" });
  });

  it("drops an update that is not finite and gives up after max_bad_steps in a row", async () => {
    const { engine, chat } = openToy();
    const sick: Engine = {
      ...engine,
      async createPolicy(spec) {
        const { sampler, learner } = await engine.createPolicy(spec);
        return { sampler, learner: { ...learner, optimStep: async () => ({ gradNorm: Number.NaN, applied: false }) } };
      },
    };
    const overrides = [`rllm.trainer.run_dir=${newFolder()}`, "rllm.trainer.max_bad_steps=2"];
    const failure = train(toy(), { engine: { engine: sick, chat }, overrides });
    await expect(failure).rejects.toThrow(RunError);
    await expect(failure).rejects.toThrow(
      "2 steps in a row ended without a finite update; the last: the gradient's norm is NaN",
    );
  });

  it("ends rollouts at the limit of the servers that sample, although the engine's model has a higher one", async () => {
    const { engine, chat } = openToy();
    const maxLength = 2;
    async function createPolicy(spec: PolicySpec): Promise<Policy> {
      const { sampler, learner } = await engine.createPolicy(spec);
      return { learner, sampler: Object.assign(sampler, { maxLength, servers: "vLLM at http://a" }) };
    }
    const overrides = [`rllm.trainer.run_dir=${newFolder()}`];
    const failure = train(toy(), { engine: { engine: { ...engine, createPolicy }, chat }, overrides });
    await expect(failure).rejects.toThrow(/the limit is 1 \(the model's context window less 1\)/);
    expect(engine.model.maxLength).toBeGreaterThan(maxLength);
  });

  it("reports prompts that are longer than the limit, and stops if all are", async () => {
    const long = toy({ data: { max_prompt_length: 1 } });
    const failure = train(long, { engine: openToy(), overrides: [`rllm.trainer.run_dir=${newFolder()}`] });
    await expect(failure).rejects.toThrow(
      /8 of 8 rollouts ended.*task toy-validation\/0: a prompt of \d+ tokens; the limit is 1 \(data\.max_prompt_length\)/,
    );
  });

  it("reports a missing dataset or run folder, and a batch larger than the dataset", async () => {
    const { validation: _, ...unmeasured } = toy();
    await expect(train(unmeasured, { engine: openToy(), evaluate: true })).rejects.toThrow(UserError);
    await expect(train(toy(), { engine: openToy(), resume: join(root, "nowhere") })).rejects.toThrow(
      /the run folder .* does not exist/,
    );
    const tooLarge = train(toy({ data: { train_batch_size: 65 } }), { engine: openToy() });
    await expect(tooLarge).rejects.toThrow("the dataset has only 64");
  });
});
