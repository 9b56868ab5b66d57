import type { ChildProcess } from "node:child_process";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { conformance } from "../../../conformance/conformance.ts";
import type { Engine } from "../../backends/engine.ts";
import { openTinkerEngine } from "../../backends/tinker/engine.ts";
import { makeTinyModel } from "../../base/python.fixture.ts";
import { readLines } from "../../json-lines.fixture.ts";
import { nightly } from "../../nightly.fixture.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { outputOf, startHone } from "./hone.fixture.ts";

const root = temporaryFolder("through");
const servers: ChildProcess[] = [];
let model: string;
let url: string;

/** Starts the command line from its source, without the API key of the environment. */
function start(args: readonly string[]): ChildProcess {
  const { TINKER_API_KEY: _, TINKER_BASE_URL: __, ...env } = process.env;
  return startHone(args, { env });
}

const hone = (...args: string[]) => outputOf(start(args));

beforeAll(async () => {
  model = await makeTinyModel(join(root, "model"));
  const settings = ["--state", join(root, "state"), "--device", "cpu", "--dtype", "float32", "--threads", "1"];
  const server = start(["serve", "--model", `tiny=${model}`, "--port", "0", ...settings]);
  servers.push(server);
  const said = await outputOf(server, /clients: /);
  url = /at (http:\S+)/.exec(said)![1]!;
});
afterAll(async () => {
  for (const server of servers) {
    const ended = new Promise((resolve) => server.once("close", resolve));
    server.kill("SIGTERM");
    await ended;
  }
});

type Metrics = Readonly<Record<string, number>>;

const metricsIn = (folder: string) => readLines<Metrics>(join(folder, "metrics.jsonl"));

async function trainToy(name: string, ...more: string[]): Promise<Metrics[]> {
  const folder = join(root, name);
  await hone("train", "src/apps/cli/toy-experiment.fixture.ts", `rllm.trainer.run_dir=${folder}`, ...more);
  return metricsIn(folder);
}

/** Sampled tokens are equal; computed values differ by rounding, which steps amplify. */
function expectSame(found: readonly Metrics[], expected: readonly Metrics[]): void {
  expect(found).toHaveLength(expected.length);
  expected.forEach((metrics, line) => {
    for (const [name, value] of Object.entries(metrics)) {
      // Times, resource use and the engines' own metrics differ, and so do metrics of rounding.
      if (/^(time|perf|memory|engine)|logprob_diff|kl_sampler|ppo_kl|lost_to_rounding/.test(name)) continue;
      const same = found[line]![name];
      if (typeof value !== "number") expect(same, name).toEqual(value);
      else expect(Math.abs(same! - value), `${name} of line ${line}`).toBeLessThan(1e-3 * Math.max(1, Math.abs(value)));
    }
  });
}

describe("hone train rllm/backend=tinker", () => {
  const steps = "rllm.trainer.total_batches=4";
  let local: Metrics[];
  beforeAll(async () => {
    local = await trainToy("local", steps, `model.name=${model}`);
  });

  it("gives the local engine's curve through hone serve in another process", async () => {
    const remote = ["rllm/backend=tinker", `tinker_base_url=${url}`, "model.name=tiny"];
    const fused = "fuse_forward_backward_and_optim_step=true";
    for (const [name, ...more] of [["fused", fused], ...(nightly ? [["remote"]] : [])] as [string, ...string[]][]) {
      const found = await trainToy(name, steps, ...remote, ...more);
      expectSame(found, local);
      const last = found.findLast((line) => line["reward/mean"] !== undefined)!;
      expect([last["engine/tinker/named_losses"], last["engine/tinker/two_pass_losses"]]).toEqual([4, 0]);
    }
  });

  it("gives the same curve through Hone's service in the same process, and continues in another", async () => {
    const own = ["rllm/backend=tinker", `model.name=${model}`];
    expectSame(await trainToy("own", steps, ...own), local);
    expect(readdirSync(join(root, "own"))).not.toContain("tinker");
    const more = await trainToy("own", "rllm.trainer.total_batches=5", ...own);
    expect(more.filter((line) => line["reward/mean"] !== undefined)).toHaveLength(5);
  });
});

/** The conformance tests that depend most on the transport; all of them also run without a port on the test engine. */
const asked = [
  /^a seed gives the same sample/,
  /^an aborted call/,
  /^gradients are linear/,
  /^forwardBackward gives/,
  /^trainStep/,
  /^two policies/,
  /^publish makes an adapter/,
  /^a saved state restores/,
  /^an adapter is exported/,
];

describe("the Tinker engine over a port, in front of the local engine", () => {
  let engine: Engine;
  beforeAll(async () => {
    engine = await openTinkerEngine({
      ...{ model: "tiny", baseUrl: url, apiKey: "tml-local", overlap: true },
      tokenizerFolder: async () => model,
    });
  });
  afterAll(() => engine?.close());

  const checks = asked.map((name) => conformance.find((check) => name.test(check.name))!);
  it.each(checks.map((check, index) => ({ ...check, index })))("$name", async ({ check, index }) => {
    await check(engine, { path: (file) => join(root, `${index}-${file}`), tolerance: 1e-4 });
  });
});
