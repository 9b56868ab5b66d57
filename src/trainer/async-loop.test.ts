// Slow: runs are killed and resumed.
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { setImmediate as turn } from "node:timers/promises";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { Workflow } from "../agents/types.ts";
import type { Capabilities, Engine, Learner, Policy, Sampler } from "../backends/engine.ts";
import type { ConfigInput } from "../config/schema.ts";
import { nightly } from "../nightly.fixture.ts";
import { readEpisode } from "../tracking/episodes.ts";
import type { Episode } from "../trajectories/types.ts";
import type { TrainOptions } from "./experiment.ts";
import { countOperations, metricLines, openToy, type ToyRow, temporaryFolders, toy } from "./toy-experiment.fixture.ts";
import { train } from "./train.ts";

const { newFolder } = temporaryFolders("async");

type AsyncTraining = NonNullable<NonNullable<ConfigInput["rllm"]>["async_training"]>;
type Config = ConfigInput & { async?: AsyncTraining };

const share = (text: string) => [...text].filter((letter) => letter === "a").length / 4;

async function turns(count: number): Promise<void> {
  for (let done = 0; done < count; done++) await turn();
}

/** Two model calls with pauses between, longer for some tasks and rollouts than for others. */
const uneven =
  (onPhase: (purpose: "train" | "validate", by: 1 | -1) => void = () => {}): Workflow<ToyRow> =>
  async ({ row }, { model, purpose, rollout }) => {
    onPhase(purpose, 1);
    try {
      await turns(((row.index * 7 + rollout * 13) % 5) * 8);
      const messages = [{ role: "user" as const, content: "b" }];
      const first = await model.chat(messages);
      await turns(((row.index * 5 + rollout * 3) % 7) * 8);
      const second = await model.chat([...messages, first.message, { role: "user", content: "c" }]);
      return { reward: (share(first.text) + share(second.text)) / 2 };
    } finally {
      onPhase(purpose, -1);
    }
  };

function asynchronous({ async: keys, ...config }: Config, workflow: Workflow<ToyRow> = uneven()) {
  return toy(
    { ...config, rllm: { ...config.rllm, async_training: { enable: true, mini_batch_size: 4, ...keys } } },
    share,
    workflow,
  );
}

async function run(experiment: ReturnType<typeof toy>, options: TrainOptions & { folder?: string } = {}) {
  const { folder = newFolder(), overrides = [], ...rest } = options;
  const all = [`rllm.trainer.run_dir=${folder}`, ...overrides];
  const summary = await train(experiment, { engine: openToy(), overrides: all, ...rest });
  return { ...summary, folder };
}

/** The metrics of training steps, without those of asynchronous training. */
const common = (folder: string) =>
  metricLines(folder).map((line) =>
    Object.fromEntries(Object.entries(line).filter(([name]) => !name.startsWith("async/"))),
  );

const steps = (folder: string) => metricLines(folder).filter(({ kind }) => kind === undefined);
const weights = (folder: string, step: number) =>
  JSON.parse(readFileSync(join(folder, `checkpoints/step-00000${step}/policy/state.json`), "utf8")).parameters;

/** `[steps][episodes]` that were trained on. */
function trainedOn(folder: string): Episode[][] {
  const files = readdirSync(join(folder, "episodes")).filter((name) => /^step-\d+\.jsonl$/.test(name));
  const read = (name: string) =>
    readFileSync(join(folder, "episodes", name), "utf8")
      .trim()
      .split("\n");
  return files.sort().map((name) => read(name).map(readEpisode));
}

const versionsOf = ({ trajectories }: Episode) =>
  trajectories.flatMap((trajectory) => trajectory.steps.map(({ policyVersion }) => policyVersion));

/** The toy engine with another sampler or learner. */
function engineWith(change: (policy: Policy) => Partial<Sampler & Learner>, capabilities: Partial<Capabilities> = {}) {
  const { engine, chat } = openToy();
  const changed = <Part extends Sampler | Learner>(part: Part, own: Partial<Sampler & Learner>): Part =>
    new Proxy(part, { get: (target, name) => Reflect.get(name in own ? own : target, name) });
  const made: Engine = {
    ...engine,
    capabilities: { ...engine.capabilities, ...capabilities },
    async createPolicy(spec) {
      const policy = await engine.createPolicy(spec);
      const own = change(policy);
      return { sampler: changed(policy.sampler, own), learner: changed(policy.learner, own) };
    },
  };
  return { engine: made, chat };
}

describe("asynchronous training", () => {
  it.each<[string, Config]>([
    ["one optimizer step a batch", {}],
    ["several epochs and minibatches", { training: { ppo_epochs: 2, num_minibatches: 2 } }],
    ["fewer rollouts at once than a task has", { rllm: { workflow: { n_parallel_tasks: 3 } } }],
    ["greedy baselines", { rllm: { algorithm: { adv_estimator: "remax" } } }],
    ["the sampler's log-probabilities", { rllm: { algorithm: { rollout_correction: { bypass_mode: true } } } }],
  ])("without staleness has exactly the metrics of the synchronous trainer: %s", async (_, config) => {
    const { folder: expected } = await run(toy(config, share, uneven()));
    const { folder } = await run(asynchronous(config));
    expect(common(folder)).toEqual(common(expected));
    expect(weights(folder, 6)).toEqual(weights(expected, 6));
    for (const line of steps(folder)) expect(line["async/staleness_max"]).toBe(0);
  });

  it("accumulates over several microbatches the same gradient as one", async () => {
    const { folder: whole } = await run(asynchronous({}));
    const sizes: number[] = [];
    const engine = engineWith((policy) => ({
      forwardBackward(sequences, loss) {
        sizes.push(sequences.length);
        return policy.learner.forwardBackward(sequences, loss);
      },
    }));
    const { folder } = await run(asynchronous({ async: { fwd_bwd_group_size: 1 } }), { engine });
    expect(sizes.length).toBeGreaterThan(12);
    expect(Math.max(...sizes)).toBeLessThanOrEqual(4);
    const [some, all] = [steps(folder), steps(whole)];
    for (const [index, line] of all.entries()) {
      for (const name of ["reward/mean", "actor/loss", "actor/grad_norm", "actor/ppo_kl", "actor/pg_loss"])
        expect(some[index]![name] as number, name).toBeCloseTo(line[name] as number, 6);
    }
  });

  it("samples during training only if staleness is allowed", async () => {
    const overlaps = async (staleness_threshold: number) => {
      let training = false;
      let asked = 0;
      const engine = engineWith((policy) => ({
        sample(requests, options) {
          if (training) asked++;
          return policy.sampler.sample(requests, options);
        },
        async forwardBackward(sequences, loss) {
          training = true;
          await turns(200);
          training = false;
          return policy.learner.forwardBackward(sequences, loss);
        },
      }));
      await run(asynchronous({ async: { staleness_threshold } }), { engine });
      return asked;
    };
    expect(await overlaps(0)).toBe(0);
    expect(await overlaps(1)).toBeGreaterThan(5);
  });

  it.each([
    { staleness_threshold: 0.5 },
    { staleness_threshold: 1 },
    { staleness_threshold: 1, trigger_parameter_sync_step: 2 },
    { staleness_threshold: 2.5 },
    { staleness_threshold: 0.5, partial_rollout: true },
    { staleness_threshold: 1, partial_rollout: true },
    { staleness_threshold: 2, trigger_parameter_sync_step: 3, partial_rollout: true },
  ])("trains on nothing older than the bound, and on each task once: %j", async (keys) => {
    const { folder } = await run(asynchronous({ async: keys, rllm: { workflow: { n_parallel_tasks: 10 } } }));
    const lines = steps(folder);
    const quota = Math.floor((1 + keys.staleness_threshold) * (keys.trigger_parameter_sync_step ?? 1) * 4);
    expect(lines).toHaveLength(6);
    for (const line of lines) {
      expect(line["async/staleness_max"]).toBeLessThanOrEqual(Math.ceil(keys.staleness_threshold));
      expect(line["async/max_rollout_quota"]).toBe(quota);
      expect(line["async/quota_used"]).toBeLessThanOrEqual(quota);
      expect(line["async/groups_consumed"]).toBe(4);
    }
    expect(Math.max(...lines.map((line) => line["async/staleness_max"] as number))).toBeGreaterThan(0);
    const { folder: other } = await run(asynchronous({}));
    const tasks = (of: string) =>
      trainedOn(of)
        .flatMap((own) => own.map(({ id }) => id))
        .sort();
    expect(tasks(folder)).toEqual(tasks(other));
    if (!keys.partial_rollout) expect(lines.at(-1)!["async/dropped_stale"]).toBe(0);
  });

  it("continues running rollouts over an update only if they may be partial", async () => {
    const numMixed = (folder: string) =>
      trainedOn(folder)
        .flat()
        .filter((episode) => new Set(versionsOf(episode)).size > 1).length;
    const whole = await run(
      asynchronous({ async: { staleness_threshold: 2 }, rllm: { workflow: { n_parallel_tasks: 10 } } }),
    );
    expect(numMixed(whole.folder)).toBe(0);

    let published = 0;
    let begun = 0;
    const engine = engineWith((policy) => ({
      publish: () =>
        policy.learner.publish().then((made) => {
          published = made.version;
          return made;
        }),
    }));
    // From the second batch on, rollouts make their second call with the next weights, where those come at all.
    const waiting: Workflow<ToyRow> = async (_, { model, purpose }) => {
      const early = purpose === "validate" || ++begun <= 16;
      const messages = [{ role: "user" as const, content: "b" }];
      const first = await model.chat(messages);
      const before = published;
      for (let waited = 0; !early && published === before && waited < 1000; waited++) await turn();
      const second = await model.chat([...messages, first.message, { role: "user", content: "c" }]);
      return (share(first.text) + share(second.text)) / 2;
    };
    const keys = { staleness_threshold: 1, partial_rollout: true };
    const partial = await run(asynchronous({ async: keys, rllm: { trainer: { test_freq: -1 } } }, waiting), { engine });
    expect(numMixed(partial.folder)).toBeGreaterThanOrEqual(16);
    for (const line of steps(partial.folder)) expect(line["async/staleness_max"]).toBeLessThanOrEqual(1);
  });

  it("dispatches tasks again that are too old, counts them and warns", async () => {
    let made = 0;
    const slow: Workflow<ToyRow> = async (_, { model, purpose }) => {
      const { text } = await model.chat([{ role: "user", content: "b" }]);
      const first = purpose === "train" && made++ === 0;
      while (first && made < 80) await turn();
      return share(text);
    };
    const keys = { staleness_threshold: 1, partial_rollout: true };
    const experiment = asynchronous({ async: keys, rllm: { trainer: { total_batches: 8, test_freq: -1 } } }, slow);
    const { folder } = await run(experiment);
    expect(steps(folder).at(-1)!["async/dropped_stale"]).toBe(1);
    expect(readFileSync(join(folder, "log.txt"), "utf8")).toMatch(
      /more than 1 updates ago and dispatched again: 1 task/,
    );
    const ids = trainedOn(folder).flatMap((own) => own.map(({ id }) => id));
    expect(new Set(ids).size).toBe(8 * 4 * 4);
  });

  it("validates when nothing else runs", async () => {
    const live = { train: 0, validate: 0 };
    let both = 0;
    const workflow = uneven((purpose, by) => {
      live[purpose] += by;
      if (live.train > 0 && live.validate > 0) both++;
    });
    const keys = { staleness_threshold: 2, partial_rollout: true };
    await run(asynchronous({ async: keys, rllm: { trainer: { test_freq: 1 } } }, workflow));
    expect(both).toBe(0);
    expect(live).toEqual({ train: 0, validate: 0 });
  });

  it("fails at once with the rollout's own error, also while the trainer is busy", async () => {
    let training = false;
    const engine = engineWith(() => ({
      forwardBackward: () => {
        training = true;
        return new Promise(() => {});
      },
    }));
    const workflow: Workflow<ToyRow> = async ({ row }, { model, purpose }) => {
      const { text } = await model.chat([{ role: "user", content: "b" }]);
      if (purpose === "train" && training) throw new Error(`row ${row.index} is broken`);
      if (purpose === "train") await turns(20);
      return share(text);
    };
    const experiment = asynchronous(
      { async: { staleness_threshold: 1 }, rllm: { workflow: { on_agent_error: "fail", n_parallel_tasks: 8 } } },
      workflow,
    );
    await expect(run(experiment, { engine })).rejects.toThrow(/task toy\/\d+ .* failed: .*row \d+ is broken/);
    // Before the trainer has anything to do.
    training = true;
    await expect(run(experiment)).rejects.toThrow(/row \d+ is broken/);
    training = false;
  });

  it.each<[string, AsyncTraining]>([
    ["without staleness", {}],
    ["ahead", { staleness_threshold: 1 }],
    ["ahead, over several steps", { staleness_threshold: 0.5, trigger_parameter_sync_step: 3 }],
    ["with partial rollouts", { staleness_threshold: 1, partial_rollout: true }],
  ])("neither loses nor repeats a task, regardless of the operation at which it is killed: %s", async (_, keys) => {
    const { folder: whole } = await run(asynchronous({ async: keys }));
    const operations = countOperations();
    await run(asynchronous({ async: keys }), { engine: operations.toy });
    const tasks = (of: string) =>
      trainedOn(of)
        .flatMap((own) => own.map(({ id }) => id))
        .sort();
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.integer({ min: 1, max: operations.count() }), { minLength: 1, maxLength: 3 }),
        async (instants) => {
          const folder = newFolder();
          for (const instant of instants) {
            await run(asynchronous({ async: keys }), { engine: countOperations(instant).toy, folder }).catch(
              (error) => {
                expect(String(error)).toMatch(/killed/);
              },
            );
          }
          await run(asynchronous({ async: keys }), { folder });
          expect(tasks(folder)).toEqual(tasks(whole));
          if (keys.staleness_threshold === undefined) expect(metricLines(folder)).toEqual(metricLines(whole));
        },
      ),
      { numRuns: nightly ? 20 : 3, seed: 3 },
    );
  });

  it("keeps waiting episodes and groups on disk if configured, and removes them in the end", async () => {
    const [episodes, groups] = [newFolder(), newFolder()];
    const seen = { episodes: 0, groups: 0 };
    const count = (folder: string) => (existsSync(folder) ? readdirSync(folder, { recursive: true }).length : 0);
    const watching = uneven(() => {
      seen.episodes = Math.max(seen.episodes, count(episodes));
      seen.groups = Math.max(seen.groups, count(groups));
    });
    const offload = { episode_offload_dir: episodes, trajectory_group_offload_dir: groups };
    const { folder } = await run(asynchronous({ async: offload }));
    const { folder: inMemory } = await run(asynchronous({}));
    expect(common(folder)).toEqual(common(inMemory));
    const engine = engineWith((policy) => ({
      async forwardBackward(sequences, loss) {
        await turns(300);
        return policy.learner.forwardBackward(sequences, loss);
      },
    }));
    await run(asynchronous({ async: { ...offload, staleness_threshold: 2 } }, watching), { engine });
    expect(seen.episodes).toBeGreaterThan(2);
    expect(seen.groups).toBeGreaterThan(1);
    expect([count(episodes), count(groups)]).toEqual([0, 0]);
  });

  it("replaces tasks that teach nothing by the next ones, with dynamic sampling", async () => {
    const partly: Workflow<ToyRow> = async ({ row }, { model }) => {
      const { text } = await model.chat([{ role: "user", content: "b" }]);
      return row.index % 3 === 0 ? 1 : share(text);
    };
    const config = { rllm: { dynamic_sampling: { enable: true } }, async: { staleness_threshold: 1 } };
    const { folder } = await run(asynchronous(config, partly));
    const lines = steps(folder);
    expect(lines.map((line) => line["async/groups_consumed"])).toEqual(Array(6).fill(4));
    expect(lines.at(-1)!["async/buffer_filtered"]).toBeGreaterThan(3);
    for (const line of lines) expect(line["groups/dropped_surplus"]).toBe(0);
  });

  it("refuses settings that contradict each other, and warns of risky ones", async () => {
    const refused = (config: Config, options: TrainOptions = {}) => expect(run(asynchronous(config), options)).rejects;
    await refused({ async: { fwd_bwd_group_size: 3 } }).toThrow(/fwd_bwd_group_size=3: it requires a divisor/);
    await refused({ rllm: { rejection_sample: { enable: true } } }).toThrow(/rejection_sample/);
    await refused({ async: { mini_batch_size: 65 } }).toThrow(
      /mini_batch_size=65: a draw takes 65 tasks, but the dataset has only 64/,
    );
    const engine = engineWith(() => ({}), { frozenSampler: { lora: true, full: false } });
    await refused({ async: { staleness_threshold: 1 } }, { engine }).toThrow(/second copy of all weights/);
    const { folder } = await run(asynchronous({ async: { staleness_threshold: 1, mini_batch_size: 8 } }));
    const log = readFileSync(join(folder, "log.txt"), "utf8");
    expect(log).toMatch(/tis_mode=token .*bypass_mode=true/);
  });
});
