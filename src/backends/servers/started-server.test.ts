import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { temporaryFolder } from "../../base/files.ts";
import { composeConfig } from "../../config/compose.ts";
import { alternates, broadcasts, gpuOptions, launchOptions, refusalOfImages } from "./started-server.ts";

const configOf = (...overrides: string[]) =>
  composeConfig({ overrides: ["local.sampler.type=vllm", ...overrides] }).config;
const onCpu = { directory: "/models/tiny", dtype: "float32", device: "cpu", maxLength: 512 };

test.each([
  [["model.lora_rank=8"], { loraRank: 8, adapters: 3 }],
  [["model.lora_rank=0"], { loraRank: undefined, adapters: 3 }],
  [["rllm.async_training.enable=true", "rllm.async_training.staleness_threshold=1.5"], { adapters: 5 }],
  [["rllm.async_training.staleness_threshold=1.5"], { adapters: 3 }],
  [["rllm.trainer.seed=5"], { seed: 5, gpu: undefined }],
])("%j", (overrides, expected) => {
  expect(launchOptions(configOf(...overrides), { model: onCpu }, false)).toMatchObject(expected);
});

test.each([
  ["the trainer's GPU", [], "cuda:1", undefined, "1"],
  ["the trainer's GPU among the visible ones", [], "cuda:1", "GPU-a, GPU-b", "GPU-b"],
  ["all GPUs for a shared model", ["local.sampler.tensor_parallel=2"], "cuda:0", "4,5", undefined],
  ["other GPUs", ["local.sampler.devices=[2,3]"], "cuda:0", undefined, "2,3"],
  ["other GPUs among the visible ones", ["local.sampler.devices=[1]"], "cuda:0", "6,7", "7"],
  ["GPUs beside a trainer on the CPU", ["local.sampler.devices=[0]"], "cpu", undefined, "0"],
])("the server runs on %s", (_, overrides, device, visible, expected) => {
  expect(gpuOptions(configOf(...overrides), device, visible).visible).toBe(expected);
});

test.each([
  ["qwen2_vl", undefined],
  ["qwen2_5_vl", undefined],
  ["smolvlm", /SGLang accepts tokens with images only for .*, not for smolvlm \(local.sampler.type=vllm does\)/],
])("images of %s through SGLang", (type, refusal) => {
  const folder = temporaryFolder("hone-sglang-");
  writeFileSync(join(folder, "config.json"), JSON.stringify({ model_type: type }));
  expect(refusalOfImages(folder)).toEqual(refusal ? expect.stringMatching(refusal) : undefined);
});

test.each([
  [[], true],
  [["local.device=cuda:1", "local.sampler.devices=[0,1]"], true],
  [["local.sampler.devices=[1]"], false],
  [["local.device=cpu", "local.sampler.devices=[0]"], false],
  [["rllm.async_training.enable=true"], false],
])("with %j, server and trainer alternate on a GPU: %s", (overrides, expected) => {
  const config = configOf(...overrides);
  expect([alternates(config), gpuOptions(config, "cuda:0", undefined).sleep]).toEqual([expected, expected]);
});

const apart = ["model.lora_rank=0", "local.sampler.devices=[1,2]"];
test.each([
  ["all weights, GPUs of its own", apart, "cuda:0", "/lib/libnccl.so.2", true],
  ["a trainer without an index", apart, "cuda", "/lib/libnccl.so.2", true],
  ["a shared GPU", apart, "cuda:1", "/lib/libnccl.so.2", false],
  ["the trainer's GPU", ["model.lora_rank=0"], "cuda:0", "/lib/libnccl.so.2", false],
  ["a LoRA", ["local.sampler.devices=[1]"], "cuda:0", "/lib/libnccl.so.2", false],
  ["a trainer on the CPU", apart, "cpu", undefined, false],
  ["torch without a shared NCCL", apart, "cuda:0", undefined, false],
  ["SGLang", [...apart, "local.sampler.type=sglang"], "cuda:0", "/lib/libnccl.so.2", false],
])("whether weights are broadcast with %s", (_, overrides, device, nccl, expected) => {
  expect(broadcasts(configOf(...overrides), { nccl, model: { device } })).toBe(expected);
});
