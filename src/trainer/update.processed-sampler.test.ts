/** Training on the samples of an SGLang server, whose log-probabilities are of the tempered distribution. */
import { afterAll, beforeAll, expect, it } from "vitest";
import type { Engine, Sampler } from "../backends/engine.ts";
import { fakeServer } from "../backends/servers/fake-server.fixture.ts";
import { serverSampler } from "../backends/servers/sampler.ts";
import { metricLines, openToy, temporaryFolders, toy } from "./toy-experiment.fixture.ts";
import { train } from "./train.ts";

const { newFolder } = temporaryFolders("processed");
const { engine, chat } = openToy();
/** What the server samples from. */
let behind: Sampler;
let server: Awaited<ReturnType<typeof fakeServer>>;

beforeAll(async () => {
  server = await fakeServer("sglang", () => behind);
});
afterAll(() => {
  server.close();
});

/** The toy engine's learner with the server's sampler, which shares its weights. */
const throughServer: Engine = {
  ...engine,
  async createPolicy(spec) {
    const { sampler, learner } = await engine.createPolicy(spec);
    behind = sampler;
    const remote = serverSampler({ url: server.url, kind: "sglang" });
    return { sampler: { ...remote, load: sampler.load }, learner };
  },
};

/** The toy engine with the seeds that SGLang gets, which have 32 bits. */
const direct: Engine = {
  ...engine,
  async createPolicy(spec) {
    const { sampler, learner } = await engine.createPolicy(spec);
    const sample: Sampler["sample"] = (requests) =>
      sampler.sample(
        requests.map(({ prompt, params }) => ({ prompt, params: { ...params, seed: params.seed % 2 ** 31 } })),
      );
    return { sampler: { ...sampler, sample }, learner };
  },
};

async function run(from: Engine, ...overrides: string[]) {
  const folder = newFolder();
  const settings = [`rllm.trainer.run_dir=${folder}`, "rllm.rollout.train.temperature=0.6", ...overrides];
  await train(toy(), { engine: { engine: from, chat }, overrides: settings });
  return metricLines(folder).filter(({ kind }) => kind === undefined);
}

it.each([
  ["one step per batch, where every ratio is 1", [], false],
  ["several steps per batch", ["training.num_minibatches=2"], false],
  [
    "ratios that would start from the sampler",
    ["training.num_minibatches=2", "rllm.algorithm.rollout_correction.bypass_mode=true"],
    true,
  ],
])("at temperature 0.6 gives the losses of raw log-probabilities: %s", async (_, overrides, recomputes) => {
  const [served, expected] = [await run(throughServer, ...overrides), await run(direct, ...overrides)];
  for (const [index, line] of served.entries()) {
    expect(Number(line["rollout/recomputed_logprobs"]) > 0).toBe(recomputes);
    expect(line["reward/mean"]).toBe(expected[index]!["reward/mean"]);
    for (const name of ["actor/loss", "actor/grad_norm"]) {
      expect(line[name]).toBeCloseTo(Number(expected[index]![name]), 5);
    }
  }
});

it("refuses off-policy correction by them before anything is sampled", async () => {
  await expect(run(throughServer, "rllm.algorithm.rollout_correction.tis_mode=token")).rejects.toThrow(
    /after temperature and filters, it requires sampling with temperature=1/,
  );
});
