// Slow: whole runs.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { singleTurn } from "../../agents/workflows.ts";
import { generated } from "../../data/dataset.ts";
import { memory, temporaryFolder } from "../../temporary-folder.fixture.ts";
import { tabularEngine } from "../../testing/tabular-engine.ts";
import type { Experiment } from "../../trainer/experiment.ts";
import { train } from "../../trainer/train.ts";
import { killableEngine } from "./killable-engine.fixture.ts";
import { openTinker } from "./tinker-engine.fixture.ts";

const root = temporaryFolder("through", memory);

const experiment: Experiment<unknown> = {
  train: generated("toy", 64, (index) => ({ index })),
  workflow: singleTurn({
    prompt: () => "b",
    reward: (_row, reply) => [...reply.text].filter((letter) => letter === "a").length / 4,
  }),
  config: {
    model: { name: "tiny" },
    rllm: { trainer: { total_batches: 5, logger: [], plot_every: 0 }, rollout: { n: 8 } },
    training: { learning_rate: 0.3 },
    data: { train_batch_size: 4, max_response_length: 4 },
  },
};

/** Trains through a service; what it keeps outlives each client. */
async function trainThrough(
  overrides: readonly string[] = [],
  options: Partial<Parameters<typeof openTinker>[0]> = {},
  trained = experiment,
) {
  const inner = tabularEngine({ alphabet: "abc" });
  const opened = await openTinker({ stateFolder: join(root, "state"), inner, ...options });
  try {
    const all = ["rllm/backend=tinker", "tinker_base_url=http://in-process", ...overrides];
    const summary = await train(trained, { overrides: all, engine: { engine: opened.engine, chat: inner.chat } });
    const valuesOf = (name: string) => summary.history.map(({ metrics }) => metrics[name]!);
    return { ...summary, rewards: valuesOf("reward/mean"), valuesOf, requests: opened.requests };
  } finally {
    await opened.close();
  }
}

it("learns, keeps its folder where default_local_dir says, and continues from a path of the service", async () => {
  const folder = join(root, "run");
  const { rewards } = await trainThrough([`training.default_local_dir=${folder}`]);
  expect(rewards.at(-1)! - rewards[0]!).toBeGreaterThan(0.3);

  const saved = readFileSync(join(folder, "checkpoints", "step-000005", "policy", "tinker.json"), "utf8");
  const { path } = JSON.parse(saved) as { path: string };
  const later = await trainThrough([
    `training.resume_from_tinker_id=${path}`,
    `rllm.trainer.run_dir=${join(root, "later")}`,
    "rllm.trainer.total_batches=1",
  ]);
  expect(later.rewards[0]! - rewards[0]!).toBeGreaterThan(0.3);
});

it("refuses to continue from a checkpoint with another adapter, and names both", async () => {
  const folder = join(root, "rank");
  await trainThrough([`rllm.trainer.run_dir=${folder}`, "model.lora_rank=4", "rllm.trainer.total_batches=1"]);
  const saved = readFileSync(join(folder, "checkpoints", "step-000001", "policy", "tinker.json"), "utf8");
  const { path } = JSON.parse(saved) as { path: string };
  const goOn = (...settings: string[]) =>
    trainThrough([
      `training.resume_from_tinker_id=${path}`,
      `rllm.trainer.run_dir=${join(root, "other-rank")}`,
      ...["rllm.trainer.total_batches=1", ...settings],
    ]);
  await expect(goOn("model.lora_rank=8")).rejects.toMatchObject({
    exitCode: 2,
    message: expect.stringMatching(/model\.lora_rank is 4, this run's is 8/),
    hint: "Continue with model.lora_rank=4.",
  });
  await expect(goOn("model.lora_rank=4", "model.train_mlp=false")).rejects.toThrow(
    /train_mlp is true, this run's is false/,
  );
  expect((await goOn("model.lora_rank=4")).step).toBe(1);
});

it("sends the service what the configuration says: group sizes, minibatches, schedules, one round trip", async () => {
  const posted: { path: string; body: Record<string, unknown> }[] = [];
  const note = (path: string, { body }: RequestInit) => {
    if (typeof body === "string") posted.push({ path, body: JSON.parse(body) });
    return undefined;
  };
  const settings = [
    "training.group_size=3",
    "training.learning_rate=0.05",
    "training.num_minibatches=2",
    "training.lr_schedule=linear",
    "training.warmup_steps_ratio=0.5",
    "training.beta2=0.9",
    "rllm.trainer.total_batches=4",
    "rllm.trainer.test_freq=0",
    "rllm.trainer.val_before_train=false",
    "fuse_forward_backward_and_optim_step=true",
  ];
  const { valuesOf, requests } = await trainThrough([`rllm.trainer.run_dir=${join(root, "asks")}`, ...settings], {
    stateFolder: join(root, "asks-state"),
    client: { overlap: true },
    intercept: note,
  });
  const of = (path: string) => posted.filter((one) => one.path === path).map(({ body }) => body);
  const sampled = of("asample_many").map(({ requests: together }) => (together as unknown[]).length);
  expect(sampled).toEqual([12, 12, 12, 12]);
  const steps = of("optim_step").map(({ adam_params }) => adam_params as Record<string, number>);
  expect(steps).toHaveLength(valuesOf("update/optimizer_steps").reduce((sum, count) => sum + count, 0));
  expect(valuesOf("update/optimizer_steps")[0]).toBe(2);
  expect([...new Set(steps.map(({ learning_rate }) => learning_rate))]).toEqual([...new Set(valuesOf("actor/lr"))]);
  expect(new Set(valuesOf("actor/lr")).size).toBeGreaterThan(2);
  expect(steps[0]).toMatchObject({ beta1: 0.9, beta2: 0.9, eps: 1e-8, weight_decay: 0, grad_clip_norm: 1 });
  // The step is requested before the gradient's result is.
  const calls = requests.map((request) => request.replace("POST ", ""));
  const first = calls.indexOf("forward_backward");
  expect(calls.slice(first, first + 4)).toEqual([
    "forward_backward",
    "retrieve_future",
    "optim_step",
    "retrieve_future",
  ]);
});

it("samples while it trains, and sends each share of a step under the loss's name", async () => {
  const settings = [
    ...["enable=true", "mini_batch_size=4", "fwd_bwd_group_size=2", "staleness_threshold=1"].map(
      (setting) => `rllm.async_training.${setting}`,
    ),
    "fuse_forward_backward_and_optim_step=true",
    `rllm.trainer.run_dir=${join(root, "async")}`,
  ];
  const options = { stateFolder: join(root, "async-state"), client: { overlap: true } };
  const { valuesOf, rewards } = await trainThrough(settings, options);
  expect(rewards.at(-1)! - rewards[0]!).toBeGreaterThan(0.3);
  expect(valuesOf("engine/tinker/named_losses")[0]).toBe(2);
  expect(valuesOf("engine/tinker/two_pass_losses").at(-1)).toBe(0);
});

it("requests samples again that the service has lost, and draws the same", async () => {
  const whole = await trainThrough([`rllm.trainer.run_dir=${join(root, "kept")}`], {
    stateFolder: join(root, "kept-state"),
  });
  let asked = 0;
  const lose = (path: string) =>
    path === "asample_many" && ++asked % 2 === 0
      ? new Response(`${JSON.stringify({ index: 0, gone: "the engine died" })}\n`)
      : undefined;
  const { rewards, valuesOf } = await trainThrough([`rllm.trainer.run_dir=${join(root, "lost")}`], {
    stateFolder: join(root, "lost-state"),
    intercept: lose,
  });
  expect(rewards).toEqual(whole.rewards);
  expect(valuesOf("engine/tinker/retries").at(-1)).toBeGreaterThan(1);
});

it("deletes from the service what the run's own retention deletes, and nothing else", async () => {
  const folder = join(root, "retained");
  const stateFolder = join(root, "retained-state");
  const few = ["training.max_ckpt_num=2", "rllm.trainer.save_freq=1", "rllm.trainer.test_freq=0"];
  const { valuesOf, requests } = await trainThrough([`rllm.trainer.run_dir=${folder}`, ...few], { stateFolder });
  const kept = readdirSync(join(folder, "checkpoints")).map((step) =>
    JSON.parse(readFileSync(join(folder, "checkpoints", step, "policy", "tinker.json"), "utf8")),
  ) as { path: string }[];
  const held = readdirSync(join(stateFolder, "checkpoints")).map((file) =>
    JSON.parse(readFileSync(join(stateFolder, "checkpoints", file), "utf8")),
  ) as { run: string; name: string }[];
  expect(held.map(({ run, name }) => `tinker://${run}/weights/${name}`).sort()).toEqual(
    kept.map(({ path }) => path).sort(),
  );
  expect(held).toHaveLength(2);
  expect(requests.filter((request) => request.startsWith("DELETE"))).toHaveLength(3);
  // The metric is that of the last step, before this step was saved.
  expect(valuesOf("engine/tinker/deleted_checkpoints").at(-1)).toBe(2);
});

it("continues if the service does not support deletion, with a warning", async () => {
  const folder = join(root, "undeleted");
  const few = ["training.max_ckpt_num=1", "rllm.trainer.save_freq=1"];
  const refuse = (_path: string, { method }: RequestInit) =>
    method === "DELETE" ? Response.json({ detail: "not yours" }, { status: 403 }) : undefined;
  const { step } = await trainThrough([`rllm.trainer.run_dir=${folder}`, ...few], {
    stateFolder: join(root, "undeleted-state"),
    intercept: refuse,
  });
  expect(step).toBe(5);
  expect(readFileSync(join(folder, "log.txt"), "utf8")).toMatch(/could not be deleted: .*not yours/);
});

describe("a run continues by itself from its last checkpoint", () => {
  const saving = [
    "rllm.trainer.save_freq=2",
    "rllm.trainer.test_freq=0",
    "rllm.trainer.val_before_train=false",
    "training.learning_rate=0.03",
  ];
  const ran = (name: string, options: Partial<Parameters<typeof openTinker>[0]> = {}, ...more: string[]) =>
    trainThrough([`rllm.trainer.run_dir=${join(root, name)}`, ...saving, ...more], {
      stateFolder: join(root, `${name}-state`),
      ...options,
    });
  const logOf = (name: string) => readFileSync(join(root, name, "log.txt"), "utf8");
  /** Does something at the n-th request of a kind. */
  const at = (number: number, kind: string, act: () => Response | undefined) => {
    let count = 0;
    return (path: string) => (path === kind && ++count === number ? act() : undefined);
  };

  it.each([
    ["before anything was saved", 1],
    ["with steps that were not saved", 4],
    ["right after a checkpoint", 3],
  ])("after the engine has died %s", async (_, number) => {
    const whole = await ran(`whole-${number}`);
    let present = killableEngine(tabularEngine({ alphabet: "abc" }));
    const reopen = async () => {
      present = killableEngine(tabularEngine({ alphabet: "abc" }));
      return present.engine;
    };
    const found = await ran(`died-${number}`, {
      server: { engines: [{ names: ["tiny"], engine: present.engine, reopen }] },
      intercept: at(number, "optim_step", () => void present.die()),
    });
    expect([found.step, found.rewards]).toEqual([5, whole.rewards]);
    expect(found.valuesOf("run/recoveries").at(-1)).toBe(1);
    expect(logOf(`died-${number}`)).toMatch(
      /warning: .*lost a part of .*continuing from the last checkpoint \(recovery 1 of this run\)/,
    );
    expect(logOf(`died-${number}`)).not.toMatch(/create_training_client/);
  });

  it("after the service was restarted while a request was under way", async () => {
    const whole = await ran("whole");
    const gone = () => Response.json({ detail: "the server was restarted since" }, { status: 410 });
    const found = await ran("restarted", { intercept: at(9, "retrieve_future", gone) });
    expect([found.rewards, found.valuesOf("run/recoveries").at(-1)]).toEqual([whole.rewards, 1]);
  });

  it("and otherwise ends with exit code 1 and the command to continue", async () => {
    const gone = () => Response.json({ detail: "the server was restarted since" }, { status: 410 });
    let calls = 0;
    const always = (path: string) => (path === "retrieve_future" && ++calls > 12 ? gone() : undefined);
    const failed = ran("again-and-again", { intercept: always });
    await expect(failed).rejects.toMatchObject({
      exitCode: 1,
      hint: expect.stringMatching(/--resume .*again-and-again/),
    });
    expect(logOf("again-and-again")).toMatch(/recovery 1 of this run/);
    // Three attempts that begin at the same step, not more.
    expect(calls).toBe(16);
    const down = () => Response.json({ error: "the engine of tiny is down", category: "server", code: "engine_down" });
    await expect(ran("down", { intercept: at(9, "retrieve_future", down) })).rejects.toMatchObject({
      ...{ exitCode: 1, message: expect.stringMatching(/is down/), hint: expect.stringMatching(/--resume .*down/) },
    });
    expect(logOf("down")).not.toMatch(/recovery/);
  });
});

describe("log-probabilities at another temperature than 1", () => {
  const warm = "rllm.rollout.train.temperature=0.6";
  let runs = 0;
  const ran = (plain: boolean, ...overrides: string[]) =>
    trainThrough([warm, `rllm.trainer.run_dir=${join(root, `warm-${++runs}`)}`, ...overrides], {
      stateFolder: join(root, `warm-state-${runs}`),
      plain,
    });

  it.each([
    ["one step a batch, where every ratio is 1", [], false],
    ["several steps a batch, by one forward", ["training.num_minibatches=2"], true],
    ["a KL in the reward", ["rllm.algorithm.kl_beta=0.1", "rllm.algorithm.use_kl_in_reward=true"], true],
  ])("are replaced by the model's own: %s", async (_, overrides, recomputes) => {
    const tempered = await ran(true, ...overrides);
    const raw = await ran(false, ...overrides);
    const recomputed = tempered.valuesOf("rollout/recomputed_logprobs");
    expect(recomputed.every((count) => count > 0)).toBe(recomputes);
    expect(raw.valuesOf("rollout/recomputed_logprobs")).toEqual(recomputed.map(() => undefined));
    expect(tempered.rewards).toEqual(raw.rewards);
    for (const name of ["actor/loss", "actor/grad_norm"]) {
      tempered.valuesOf(name).forEach((value, step) => {
        // A step whose rewards are all the same has none.
        expect(value ?? 0).toBeCloseTo(raw.valuesOf(name)[step] ?? 0, 5);
      });
    }
    // The sampler's log-probabilities are gone, so there is nothing to compare the trainer's with.
    expect(tempered.valuesOf("rollout/logprob_diff_max")).toEqual(recomputed.map(() => undefined));
  });

  const correction = "rllm.algorithm.rollout_correction.bypass_mode=false";
  const weighs = "rllm.algorithm.rollout_correction.tis_mode=token";

  it("are refused for off-policy correction before anything is sampled", async () => {
    await expect(ran(true, correction, weighs)).rejects.toThrow(
      /after temperature and filters, it requires sampling with temperature=1/,
    );
    expect((await ran(false, correction, weighs)).step).toBe(5);
  });

  it("are recognized if a call sets its own temperature", async () => {
    const calls: Experiment<unknown> = {
      ...experiment,
      workflow: async (_task, { model }) => {
        const { text } = await model.chat([{ role: "user", content: "b" }], { temperature: 0.6 });
        return [...text].filter((letter) => letter === "a").length / 4;
      },
    };
    const cold = ["rllm.rollout.train.temperature=1", correction, weighs];
    const plain = { stateFolder: join(root, "calls"), plain: true };
    const overrides = [`rllm.trainer.run_dir=${join(root, "calls-run")}`, ...cold];
    await expect(trainThrough(overrides, plain, calls)).rejects.toThrow(/after temperature, top_p and top_k/);
  });
});
