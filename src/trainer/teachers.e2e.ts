/** A teacher beside the policy, behind `hone serve` and on a real vLLM server gives the same run. */
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { singleTurn } from "../agents/workflows.ts";
import { features } from "../apps/server/features.ts";
import { startServer } from "../apps/server/server.ts";
import type { Engine } from "../backends/engine.ts";
import { openLocalEngine } from "../backends/local/engine.ts";
import { localEngineOptions } from "../backends/local/options.ts";
import { startSamplingServer } from "../backends/servers/start-servers.ts";
import { makeTinyModel } from "../base/python.fixture.ts";
import { composeConfig } from "../config/compose.ts";
import { generated } from "../data/dataset.ts";
import { nightly } from "../nightly.fixture.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import type { Experiment } from "./experiment.ts";
import { train } from "./train.ts";

const root = temporaryFolder("teachers");
let [policy, teacher] = ["", ""];
let engine: Engine;
const closing: (() => Promise<void>)[] = [];

const experiment: Experiment<{ index: number }> = {
  train: generated("toy", 64, (index) => ({ index })),
  workflow: singleTurn({ prompt: ({ index }) => `say ${index}`, reward: () => 0 }),
};

const plain = ["local.device=cpu", "local.dtype=float32", "local.threads=1"];

beforeAll(async () => {
  policy = await makeTinyModel(join(root, "policy"), 0, 32);
  teacher = await makeTinyModel(join(root, "teacher"), 1, 32);
  engine = await openLocalEngine({ model: teacher, device: "cpu", dtype: "float32", threads: 1 });
  closing.push(engine.close);
});
afterAll(async () => {
  for (const close of closing.reverse()) await close();
});

/** The KL to the teacher and the gradient's norm at each step. */
async function curve(setting: string, mode: string): Promise<number[]> {
  const loss = "distillation.distillation_loss";
  const { history } = await train(experiment, {
    overrides: [
      ...plain,
      ...[`model.name=${policy}`, "model.lora_rank=4", "training.learning_rate=0.02"],
      ...["data.train_batch_size=4", "data.max_response_length=4", "rllm.rollout.n=1"],
      ...["rllm.trainer.total_batches=4", "rllm.trainer.save_freq=0", "rllm.trainer.logger=[]"],
      `rllm.trainer.run_dir=${join(root, `run-${runs++}`)}`,
      ...["distillation.enabled=true", `+distillation.teacher_models.strong=${setting}`],
      ...[`${loss}.loss_mode=${mode}`, `${loss}.topk=8`].slice(0, mode === "k1" ? 1 : 2),
    ],
  });
  return history.flatMap(({ metrics }) => [metrics["distillation/teacher_kl"]!, metrics["actor/grad_norm"]!]);
}
let runs = 0;

/** @param setting of the teacher on a server */
async function expectSameCurves(setting: string, tolerance: number): Promise<void> {
  for (const mode of ["k1", "forward_kl_topk"]) {
    const beside = await curve(`{model_path: ${teacher}}`, mode);
    const served = await curve(setting, mode);
    expect(beside[0]).toBeGreaterThan(0.01);
    for (const [index, value] of served.entries()) {
      expect(Math.abs(value - beside[index]!), `${mode}, value ${index}`).toBeLessThan(tolerance);
    }
  }
}

describe.runIf(nightly)("a teacher on a server gives the run of one beside the policy", { timeout: 1_800_000 }, () => {
  it("behind hone serve", async () => {
    const server = await startServer({
      ...{ engines: [{ names: ["teacher"], engine }], host: "127.0.0.1", port: 0, apiKey: null },
      ...{ stateFolder: join(root, "state"), features },
    });
    closing.push(server.close);
    await expectSameCurves(`{base_url: "${server.url}/v1", model: teacher}`, 1e-3);
  });

  it("on vLLM", async () => {
    // vLLM 0.32 on a CPU with --enable-lora ends at a request for log-probabilities of a prompt.
    const own = [`model.name=${teacher}`, "model.lora_rank=0", "local.sampler.type=vllm", ...plain];
    const { config } = composeConfig({ overrides: own });
    const hooks = { logFile: join(root, "worker.log") };
    const local = await openLocalEngine(localEngineOptions(config, hooks));
    closing.push(local.close);
    const server = await startSamplingServer(config, local, hooks);
    closing.push(server.stop);
    process.env.VLLM_TEACHER_KEY = server.apiKey;
    await expectSameCurves(`{base_url: "${server.url}", api_key_env: VLLM_TEACHER_KEY}`, 5e-3);
  });
});
