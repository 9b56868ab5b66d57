/** Two `hone serve` processes sample: for conversations, for `hone eval` and `hone chat`, and for a run in which one is killed. */
import type { ChildProcess } from "node:child_process";
import { join } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { madeUpTokens, params } from "../../../conformance/tools.ts";
import { outputOf, startHone } from "../../apps/cli/hone.fixture.ts";
import { makeTinyModel } from "../../base/python.fixture.ts";
import { composeConfig } from "../../config/compose.ts";
import { generated } from "../../data/dataset.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { train } from "../../trainer/train.ts";
import { openChat, openEngine } from "../backends.ts";
import type { Engine } from "../engine.ts";

const root = temporaryFolder("two-servers");
const servers: ChildProcess[] = [];
let urls: string[];
let settings: string[];
let engine: Engine;

async function serve(name: string, model: string): Promise<string> {
  const small = ["--device", "cpu", "--dtype", "float32", "--threads", "1", "--state", join(root, name)];
  const server = startHone(["serve", "--model", `tiny=${model}`, "--port", "0", ...small]);
  servers.push(server);
  return /at (http:\S+)/.exec(await outputOf(server, /clients: /))![1]!;
}

beforeAll(async () => {
  const model = await makeTinyModel(join(root, "model"));
  urls = await Promise.all(["a", "b"].map((name) => serve(name, model)));
  settings = [
    ...[`model.name=${model}`, "model.lora_rank=4", `local.sampler={type: vllm, url: [${urls}]}`],
    ...["local.device=cpu", "local.dtype=float32", "local.threads=1"],
  ];
  engine = await openEngine(composeConfig({ overrides: settings }), { folder: join(root, "run") });
});
afterAll(async () => {
  await engine?.close();
  for (const server of servers) server.kill("SIGKILL");
});

/** Samples that each server has been asked for so far. */
const counts = () =>
  Promise.all(
    urls.map(async (url) => {
      const text = await (await fetch(`${url}/metrics`)).text();
      const [, count = "0"] =
        /^hone_http_requests_total\{route="\/inference\/v1\/generate",status="200"\} (\d+)/m.exec(text) ?? [];
      return Number(count);
    }),
  );

it("the turns of a conversation go to one server, and conversations to both", async () => {
  const { sampler } = await engine.createPolicy({ adapter: { kind: "none" } });
  const [before, turns] = [await counts(), 3];
  const conversations = Array.from({ length: 6 }, async (_, seed) => {
    const session = {};
    let prompt = madeUpTokens(engine, seed, 4);
    for (let turn = 0; turn < turns; turn++) {
      for await (const { tokens } of sampler.sample([{ prompt, session, params: params({ maxTokens: 4, seed }) }])) {
        prompt = Int32Array.of(...prompt, ...tokens);
      }
    }
  });
  await Promise.all(conversations);
  const asked = (await counts()).map((count, index) => count - before[index]!);
  expect(asked).toEqual([9, 9]);
});

it("hone eval and hone chat sample from them", async () => {
  const before = await counts();
  const evaluating = ["src/apps/cli/toy-experiment.fixture.ts", "--json", "-o", join(root, "measured")];
  const [measured] = await Promise.all([
    outputOf(startHone(["eval", ...evaluating, ...settings])),
    outputOf(startHone(["chat", "--message", "hello", "rllm.rollout.val.max_tokens=4", ...settings])),
  ]);
  expect(measured).toContain('"mean":');
  const asked = (await counts()).map((count, index) => count - before[index]!);
  // Four tasks at least, and one conversation.
  expect(asked[0]! + asked[1]!).toBeGreaterThanOrEqual(5);
});

it("the samples of a server that is killed in the middle of rollouts are asked from the other one, and counted", async () => {
  const share = (text: string) => [...text].filter((letter) => letter >= "a" && letter <= "z").length / 4;
  let rollouts = 0;
  const { history } = await train(
    {
      train: generated("toy", 64, (index) => ({ index })),
      workflow: async ({ row }, { model }) => {
        const ask = (content: string) => model.chat([{ role: "user", content }]);
        const first = await ask(`say ${row.index}`);
        // The second step has eight rollouts, half of which began at this server.
        if (++rollouts === 9) servers[0]!.kill("SIGKILL");
        const second = await ask(`say ${row.index} again after ${first.text}`);
        return share(second.text);
      },
    },
    {
      engine: {
        engine,
        chat: await openChat(engine.model.directory, composeConfig({ overrides: settings }).config, () => {}),
      },
      overrides: [
        ...settings,
        ...["rllm.rollout.n=4", "data.train_batch_size=2", "data.max_response_length=4"],
        `rllm.trainer={total_batches: 3, save_freq: 0, test_freq: 0, logger: [], run_dir: ${join(root, "run")}}`,
      ],
    },
  );
  const metrics = history.map((step) => step.metrics);
  expect(metrics.map((step) => [step["rollout/servers"], step["batch/failed_episodes"]])).toEqual([
    [2, 0],
    [1, 0],
    [1, 0],
  ]);
  const retries = metrics.map((step) => step["rollout/server_retries"] ?? Number.NaN);
  expect([retries[0], retries[1]! > 0, retries[2]]).toEqual([0, true, 0]);
});
