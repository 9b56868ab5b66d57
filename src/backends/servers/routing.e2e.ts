/**
 * `router_replay=R3`: a real vLLM server tells the experts of its tokens, and the local engine repeats them. vLLM's package for CPUs
 * does so only with what `worker/tests/triton_on_cpu` adds. Whole runs are in `src/trainer/routing.e2e.ts`.
 */
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { linearLoss, lora, madeUpWeights } from "../../../conformance/tools.ts";
import { makeTinyMixture } from "../../base/python.fixture.ts";
import { composeConfig } from "../../config/compose.ts";
import { nightly } from "../../nightly.fixture.ts";
import { createSamplingClient, rolloutSeed } from "../../rollout/session.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { toSequences } from "../../trajectories/batch.ts";
import { openChat } from "../backends.ts";
import type { Engine } from "../engine.ts";
import { ownDistribution } from "../engine-parts.ts";
import { openLocalEngine } from "../local/engine.ts";
import { localEngineOptions } from "../local/options.ts";
import type { ServerProcess } from "./process.ts";
import { serverSampler } from "./sampler.ts";
import { startSamplingServer } from "./start-servers.ts";

const root = temporaryFolder("routing");
const model = join(root, "model");
const config = () =>
  composeConfig({
    overrides: [
      `model.name=${model}`,
      "model.lora_rank=0",
      "rllm.algorithm.router_replay=R3",
      "local={device: cpu, dtype: float32, threads: 1, sampler: {type: vllm}}",
    ],
  }).config;
let engine: Engine;
let server: ServerProcess;

beforeAll(async () => {
  if (!nightly) return;
  await makeTinyMixture(model, 32);
  const hooks = { logFile: join(root, "worker.log") };
  engine = await openLocalEngine(localEngineOptions(config(), hooks));
  process.env.PYTHONPATH = join(import.meta.dirname, "../../../worker/tests/triton_on_cpu");
  process.env.VLLM_USE_V2_MODEL_RUNNER = "1";
  server = await startSamplingServer(config(), engine, hooks);
});
afterAll(async () => {
  await engine?.close();
  await server?.stop();
});

test.runIf(nightly).each([1, 2])("training repeats the experts of %i turns", async (turns) => {
  const client = createSamplingClient({
    sampler: serverSampler({ url: server.url, apiKey: server.apiKey }),
    chat: await openChat(engine.model.directory, config(), () => {}),
    defaults: ownDistribution,
    limits: { maxPromptLength: 200, maxResponseLength: 200 },
    seedFor: rolloutSeed(1),
    routing: true,
  });
  const session = client.open({ taskId: "a", rollout: 0, attempt: 0, order: 0 });
  const messages = [{ role: "user" as const, content: "say something" }];
  for (let turn = 0; turn < turns; turn++) {
    const { message } = await session.model.chat(messages, { maxTokens: 12 });
    messages.push(message as never, { role: "user", content: "again" });
  }
  const [trajectory] = session.trajectories();
  const { sequences } = toSequences(trajectory!);
  session.close();
  expect(sequences).toHaveLength(1);
  const [sequence] = sequences;
  const { learner } = await engine.createPolicy({ adapter: lora() });
  const differences = async (shift: number) => {
    const { experts, ...routing } = sequence!.routing!;
    const shifted = { ...routing, experts: experts.map((expert) => (expert + shift) % 4) };
    const { logprobs } = await learner.forward([{ ...sequence!, routing: shifted }], {});
    return Math.max(...logprobs.map((value, index) => Math.abs(value - sequence!.samplerLogprobs[index]!)));
  };
  // Other experts in a learner that has already computed the sequence would not count until its next publish.
  expect(await differences(0)).toBeLessThan(1e-4);
  await learner.publish();
  expect(await differences(1)).toBeGreaterThan(1e-2);
  const count = sequence!.samplerLogprobs.length;
  await learner.forwardBackward(sequences, linearLoss(sequences, madeUpWeights(count, 1)));
  expect((await engine.stats())["train/tokens_without_experts"]).toBe(0);
  await learner.close();
});
