/** Whole runs in which a small model learns from a teacher that answers "a". */
// Slow: whole runs.

import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { afterAll, beforeAll, describe, expect, it, test } from "vitest";
import { singleTurn } from "../agents/workflows.ts";
import { features } from "../apps/server/features.ts";
import { startServer } from "../apps/server/server.ts";
import type { Engine, Teacher } from "../backends/engine.ts";
import { learnerTeacher } from "../backends/teachers.ts";
import { listen } from "../base/http.ts";
import { fromRows } from "../data/dataset.ts";
import { tabularEngine } from "../testing/index.ts";
import { readEpisode } from "../tracking/episodes.ts";
import { toBatch } from "../trajectories/batch.ts";
import type { Episode, Step, TrajectoryGroup } from "../trajectories/types.ts";
import type { Experiment } from "./experiment.ts";
import { askTeachers } from "./teachers.ts";
import { metricLines, openToy, type ToyRow, temporaryFolders, toy } from "./toy-experiment.fixture.ts";
import { train } from "./train.ts";

const { newFolder } = temporaryFolders("distillation");

/** Prefers a letter, after any other. */
const knowing = (letter: string) => {
  const { chat } = openToy();
  const [wanted = 0] = chat.encode(letter);
  return tabularEngine({ alphabet: "abc", logit: (next) => (next === wanted ? 3 : 0) });
};

/** The toy engine, which also has a teacher for each letter. */
function engineWithTeachers(sampling: Partial<Engine["capabilities"]> = {}) {
  const { engine, chat } = openToy();
  const withTeachers: Engine = {
    ...engine,
    capabilities: { ...engine.capabilities, otherModels: true, ...sampling },
    createLearner: ({ model, ...spec }) =>
      model === undefined ? engine.createLearner(spec) : knowing(model.at(-1)!).createLearner(spec),
  };
  return { engine: withTeachers, chat };
}

const plain = [
  "distillation.enabled=true",
  "rllm.trainer.total_batches=12",
  "rllm.rollout.n=1",
  "data.train_batch_size=16",
  "rllm.trainer.val_before_train=false",
];
const taught = [...plain, "+distillation.teacher_models.strong.model_path=./knows-a"];
const mode = (name: string) => `distillation.distillation_loss.loss_mode=${name}`;

/** The reward is always 0, so only the teacher teaches; the share of the letter "a" tells what was learned. */
async function run(
  overrides: readonly string[],
  experiment: Experiment<ToyRow> = toy({}, () => 0),
  folder = newFolder(),
) {
  const { history } = await train(experiment, {
    engine: engineWithTeachers(),
    overrides: [...overrides, `rllm.trainer.run_dir=${folder}`],
  });
  return history.map(({ metrics }) => metrics);
}

describe.each([
  ["k1", []],
  ["k1", ["distillation.distillation_loss.kl_discount_factor=0.5"]],
  ["k1", ["training.num_minibatches=2", "training.ppo_epochs=2"]],
  ["k3", []],
  ["k2", ["rllm.algorithm.loss_agg_mode=seq-mean-token-mean"]],
  ["forward_kl_topk", ["distillation.distillation_loss.topk=2"]],
  ["cross_entropy_topk", ["distillation.distillation_loss.topk=3"]],
  ["reverse_kl_topk", ["distillation.distillation_loss.topk=8"]],
  ["jsd", ["distillation.distillation_loss.topk=2"]],
  ["jsd", ["distillation.distillation_loss.beta=0.5", "distillation.distillation_loss.topk=1"]],
  ["jsd", ["distillation.distillation_loss.beta=1"]],
  ["jsd", ["distillation.distillation_loss.topk=3", "rllm.algorithm.entropy_coeff=0.001"]],
] as const)("a policy learns from a teacher by %s %j", (name, more) => {
  it("without rewards, with one rollout per task", async () => {
    const metrics = await run([...taught, mode(name), ...more, "training.learning_rate=0.2"]);
    const kl = metrics.map((one) => one["distillation/teacher_kl"]!);
    expect(metrics.map((one) => one["distillation/tokens_without_teacher"])).toEqual(new Array(12).fill(0));
    expect(kl[0]).toBeGreaterThan(0.4);
    expect(kl.at(-1)! / kl[0]!).toBeLessThan(0.35);
    expect(metrics.every((one) => Number.isFinite(one["actor/loss"]))).toBe(true);
    expect(metrics.map((one) => one["update/without_signal"])).toEqual(new Array(12).fill(0));
  });
});

it("reports how much of both distributions a divergence compares", async () => {
  const [first] = await run([...taught, mode("forward_kl_topk"), "distillation.distillation_loss.topk=2"]);
  expect(first!["distillation/teacher_mass"]).toBeGreaterThan(first!["distillation/student_mass"]!);
  expect(first!["distillation/overlap_ratio"]).toBeGreaterThan(0);
});

it("adds the teacher to the rewards", async () => {
  const rewarded = toy({}, (text) => Number(text.startsWith("b")));
  const both = ["distillation.distillation_loss.use_task_rewards=true", "rllm.rollout.n=4"];
  const metrics = await run(
    [...taught, ...both, "distillation.distillation_loss.distillation_loss_coef=0.1"],
    rewarded,
  );
  expect(metrics.at(-1)!["reward/mean"]!).toBeGreaterThan(metrics[0]!["reward/mean"]! + 0.2);
  expect(metrics.every((one) => one["distillation/teacher_kl"] !== undefined)).toBe(true);
});

it("asks the teacher that a column of the row names, and reports the difference of each", async () => {
  const rows = Array.from({ length: 64 }, (_, index) => ({ index, data_source: index % 2 === 0 ? "even" : "odd" }));
  const { validation: _, ...rest } = toy({}, () => 0);
  const experiment = { ...rest, train: fromRows("two", rows) } as unknown as Experiment<ToyRow>;
  const two = [
    ...plain,
    "+distillation.teacher_models.first={key: even, model_path: ./knows-a}",
    "+distillation.teacher_models.second={key: odd, model_path: ./knows-b}",
  ];
  const [first] = await run(two, experiment);
  expect(first!["distillation/teacher_kl/first"]).toBeGreaterThan(0);
  expect(first!["distillation/teacher_kl/second"]).toBeGreaterThan(0);
  const wrong = two.map((text) => text.replace("key: odd", "key: strange"));
  await expect(run(wrong, experiment)).rejects.toThrow("data_source is odd, which is not the key of a teacher");
});

it("keeps what the teacher thinks of each token, and its choice", async () => {
  const folder = newFolder();
  await run(taught, undefined, folder);
  const { readFileSync, readdirSync } = await import("node:fs");
  const file = readdirSync(join(folder, "episodes")).find((name) => name.endsWith(".jsonl"))!;
  const [line = ""] = readFileSync(join(folder, "episodes", file), "utf8").split("\n");
  const [step] = readEpisode(line).trajectories[0]!.training!;
  expect(step!.teacher).toBeDefined();
  expect(step!.choice).toBe(openToy().chat.encode("a")[0]);
});

it("asks a teacher with a prompt of its own, call by call", async () => {
  const { engine, chat } = openToy();
  const learner = await engine.createLearner({ adapter: { kind: "none" } });
  const [a = 0, b = 0, c = 0] = chat.encode("abc");
  const call = (promptTokens: number[], tokens: number[]): Step => ({
    ...{ promptTokens: Int32Array.from(promptTokens), tokens: Int32Array.from(tokens), logprobs: new Float32Array(2) },
    ...{ policyVersion: 0, stopReason: "stop", text: "", messages: [], reward: null },
  });
  const steps = [call([a], [b, c]), call([a, b, c, a], [b, b])];
  const trajectory = { name: "agent", steps, reward: 0 };
  const group = { id: "t:agent", taskId: "t", role: "agent", members: [] };
  const { batch, origins } = toBatch(
    [{ ...group, members: [{ episode: {} as Episode, trajectory, reward: 0 }] }],
    [[0]],
    { maxLength: 100 },
  );
  const asked: number[][] = [];
  const teacher: Teacher = {
    maxLength: 6,
    logprobs(sequences) {
      asked.push(...sequences.map(({ tokens, trained }) => [...tokens, ...trained]));
      return learnerTeacher(learner).logprobs(sequences);
    },
  };
  const { logprobs } = await askTeachers(
    {
      teacherOf: () => ({ name: "only", teacher }),
      promptOf: async (_task, { promptTokens }) => ({ tokens: Int32Array.of(c, c, ...promptTokens) }),
      ...{ maxLength: 100, count: 0 },
    },
    ...([batch, origins, [group] as TrajectoryGroup[]] as const),
  );
  expect(asked).toEqual([[c, c, a, b, c, 0, 0, 1, 1]]);
  // The second call is longer than the teacher's context.
  expect([...logprobs].map(Number.isNaN)).toEqual([false, false, true, true]);
});

it.each([Number.NaN, Number.NEGATIVE_INFINITY])("a teacher that returns %d ends the run", async (value) => {
  const { engine, chat } = engineWithTeachers();
  const createLearner: Engine["createLearner"] = async ({ model, ...spec }) => {
    const learner = await engine.createLearner(spec);
    if (model === undefined) return learner;
    const forward: typeof learner.forward = async (...given) => {
      const found = await learner.forward(...given);
      return { ...found, logprobs: found.logprobs.fill(value, 0, 1) };
    };
    return { ...learner, forward };
  };
  const overrides = [...taught, `rllm.trainer.run_dir=${newFolder()}`];
  await expect(
    train(
      toy({}, () => 0),
      { engine: { engine: { ...engine, createLearner }, chat }, overrides },
    ),
  ).rejects.toThrow(`the teacher strong returned ${value} as the log-probability of a token`);
});

it("teaches itself with a prompt of its own", async () => {
  const experiment: Experiment<ToyRow> = {
    ...toy({}, () => 0),
    workflow: singleTurn({ prompt: () => "b", reward: () => 0 }),
    teacherPrompt: (_row, messages) => [{ role: "system", content: "c" }, ...messages],
  };
  const metrics = await run(plain, experiment);
  expect(metrics).toHaveLength(12);
  expect(metrics.every((one) => Number.isFinite(one["distillation/teacher_kl"]))).toBe(true);
});

it("learns asynchronously, and is the same run when it is resumed", async () => {
  const asynchronous = [
    "rllm.async_training.enable=true",
    "rllm.async_training.mini_batch_size=8",
    "rllm.async_training.staleness_threshold=0.5",
  ];
  const metrics = await run([...taught, ...asynchronous]);
  expect(metrics.at(-1)!["distillation/teacher_kl"]!).toBeLessThan(0.6 * metrics[0]!["distillation/teacher_kl"]!);

  const [whole, halves] = [newFolder(), newFolder()];
  await run(taught, undefined, whole);
  await run([...taught, "rllm.trainer.total_batches=6"], undefined, halves);
  await run([...taught, "training.resume_mode=auto"], undefined, halves);
  // The share of the planned steps that are done.
  const lines = (folder: string) => metricLines(folder).map(({ "progress/done_frac": _, ...line }) => line);
  expect(lines(halves)).toEqual(lines(whole));
});

describe("a teacher on a server", () => {
  let url = "";
  let close = async () => {};
  beforeAll(async () => {
    const engine = knowing("a");
    const server = await startServer({
      ...{ engines: [{ names: ["strong"], engine }], host: "127.0.0.1", port: 0, apiKey: "tml-key" },
      ...{ stateFolder: newFolder(), features },
    });
    ({ url, close } = server);
    process.env.TEACHER_KEY = "tml-key";
  });
  afterAll(() => close());
  const served = (more = "") =>
    `+distillation.teacher_models.strong={base_url: "${url}/v1", api_key_env: TEACHER_KEY${more}}`;

  test.each(["k1", "jsd"])("teaches by %s as the model in this process does", async (name) => {
    const topk = name === "jsd" ? ["distillation.distillation_loss.topk=3"] : [];
    const [here, there] = [
      await run([...taught, mode(name), ...topk]),
      await run([...plain, served(), mode(name), ...topk]),
    ];
    expect(there.map((one) => one["distillation/teacher_kl"])).toEqual(
      here.map((one) => expect.closeTo(one["distillation/teacher_kl"]!, 3)),
    );
  });

  test("answers 500 once: the request is repeated and counted, and the run gives the same", async () => {
    let failures = 1;
    const flaky = createServer(async (incoming, answer) => {
      const { method = "GET", headers } = incoming;
      const samples = method === "POST" && /completions|generate/.test(`${incoming.url}`);
      if (samples && failures-- > 0) return void answer.writeHead(500).end("overloaded");
      const body = method === "POST" ? { body: await text(incoming) } : {};
      const { authorization = "", "content-type": type = "application/json" } = headers;
      const got = await fetch(`${url}${incoming.url}`, {
        ...{ method, headers: { authorization, "content-type": type }, ...body },
      });
      answer.writeHead(got.status, { "content-type": "application/json" }).end(await got.text());
    });
    const between = await listen(flaky);
    const folder = newFolder();
    const metrics = await run([...plain, served().replace(url, between)], undefined, folder);
    const direct = await run([...plain, served()]);
    expect(metrics.map((one) => one["distillation/teacher_retries"])).toEqual([1, ...Array(11).fill(0)]);
    const kl = (history: typeof metrics) => history.map((one) => one["distillation/teacher_kl"]);
    expect(kl(metrics)).toEqual(kl(direct));
    expect(readFileSync(join(folder, "log.txt"), "utf8")).toMatch(
      /retrying requests to the teacher at http\S+ after: the inference server at \S+ answered 500: overloaded/,
    );
    flaky.close();
  });

  test("is refused with another tokenizer", async () => {
    const other = createServer(({ url: route }, answer) => {
      answer.setHeader("content-type", "application/json");
      const models = { data: [{ id: "other", owned_by: "vllm", max_model_len: 512 }] };
      answer.end(JSON.stringify(route === "/tokenize" ? { tokens: [3, 1] } : models));
    });
    const address = await listen(other);
    const { engine, chat } = engineWithTeachers();
    // The toy's own vocabulary has eight characters.
    const wide = { ...chat, encode: (text: string) => (text.length < 40 ? chat.encode(text) : Int32Array.of(1, 3)) };
    const teacher = `+distillation.teacher_models.strong.base_url=${address}`;
    const refused = train(
      toy({}, () => 0),
      {
        ...{ engine: { engine, chat: wide } },
        overrides: [...plain, teacher, `rllm.trainer.run_dir=${newFolder()}`],
      },
    );
    await expect(refused).rejects.toThrow(/the teacher at .* has a different vocabulary from/);
    other.close();
  });

  test("is refused without the model or the key", async () => {
    await expect(run([...plain, served(", model: other")])).rejects.toThrow('does not serve "other"');
    const keyless = served().replace("TEACHER_KEY", "NO_KEY");
    await expect(run([...plain, keyless])).rejects.toThrow("the environment variable NO_KEY is not set");
  });
});

test.each<[string[], string]>([
  [["distillation.enabled=true"], "it requires a teacher"],
  [
    [...plain, "+distillation.teacher_models.self.model_path=./policy", "model.name=./policy"],
    "another model than model.name",
  ],
  [[...taught, mode("k1"), "distillation.distillation_loss.use_policy_gradient=false"], "expected gradient of zero"],
  [
    [...taught, mode("jsd"), "distillation.distillation_loss.use_policy_gradient=true"],
    "an advantage is about the sampled token",
  ],
  [[...taught, "distillation.distillation_loss.topk=0"], "divergences over the whole vocabulary are not supported"],
  [[...taught, "rllm.dynamic_sampling.enable=true"], "selects groups by their rewards"],
  [[...taught, "rllm.distill.shared_tokenizer=false"], "a teacher with the policy's tokenizer"],
  [
    [...taught, "+distillation.teacher_models.second.model_path=./knows-b"],
    "a different key for each of several teachers",
  ],
  [[...plain, "+distillation.teacher_models.strong={key: a}"], "either model_path or base_url"],
  [[...taught, mode("jsd")], "the vocabulary has only 8 tokens"],
])("%j is refused before the run", async (overrides, message) => {
  await expect(run(overrides)).rejects.toThrow(message);
});
