import { mkdtempSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, describe, expect, test, vi } from "vitest";
import { composeConfig } from "../../config/compose.ts";
import { backendFacts } from "../../config/schema/backends.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { compareValues, expectedValues, reasonUnused, verlEngineOptions, withModel } from "./options.ts";

const model = mkdtempSync(join(temporaryFolder("verl"), "model-"));
writeFileSync(join(model, "config.json"), "{}");

const composed = (...overrides: string[]) =>
  composeConfig({ overrides: ["rllm/backend=verl", `model.name=${model}`, ...overrides] });

function optionsOf(...overrides: string[]) {
  const warnings: string[] = [];
  const options = verlEngineOptions(composed(...overrides), 2, { warn: (text) => warnings.push(text) });
  return { ...options, warnings };
}

test("verl gets its whole tree with the model's folder, and nothing of rllm's", () => {
  const { config } = optionsOf("actor_rollout_ref.actor.strategy=fsdp2", "+actor_rollout_ref.actor.mine=7");
  expect(withModel(config, "/my-model")).toMatchObject({
    actor_rollout_ref: {
      model: { path: "/my-model" },
      actor: { strategy: "fsdp2", mine: 7, ppo_mini_batch_size: 256 },
    },
    critic: { model: { path: "/my-model", tokenizer_path: "/my-model" } },
  });
  const sections = backendFacts.verl.ownSections ?? [];
  expect(Object.keys(config).filter((name) => !sections.includes(name))).toEqual([]);
});

test("a schedule that verl does not know is left to Hone", () => {
  const { config, expected } = optionsOf("rllm.algorithm.lr_schedule=linear");
  expect(config).toMatchObject({ actor_rollout_ref: { actor: { optim: { lr_scheduler_type: "constant" } } } });
  expect(expected.has(`${actor}.optim.lr_scheduler_type`)).toBe(false);
});

test.each([
  [[], 2, 1],
  [["trainer.n_gpus_per_node=8"], 8, 0],
  [["trainer.n_gpus_per_node=1", "trainer.nnodes=3"], 3, 0],
])("with %j on two cores there are %i workers", (overrides, ranks, warnings) => {
  const options = optionsOf(...overrides);
  expect(options).toMatchObject({ ranks });
  expect(options.warnings).toHaveLength(warnings);
});

test.each([
  [[], "naive"],
  [["actor_rollout_ref.rollout.checkpoint_engine.backend=nccl"], "nccl"],
])("asynchronous training on CPUs with %j sends weights by %s", (overrides, backend) => {
  const { config } = optionsOf("rllm.async_training.enable=true", ...overrides);
  expect(config).toMatchObject({ actor_rollout_ref: { rollout: { checkpoint_engine: { backend } } } });
});

test("a cluster's settings are Ray's own", () => {
  const init = ["address=host:6379", "namespace=mine", "num_cpus=null", "runtime_env={py_executable: null, a: 1}"];
  expect(optionsOf(...init.map((one) => `++ray_kwargs.ray_init.${one}`)).ray).toEqual({
    address: "host:6379",
    namespace: "mine",
    runtime_env: { a: 1 },
  });
});

const actor = "actor_rollout_ref.actor";

test.each([
  [["rllm.algorithm.kl_beta=0.01"], { [`${actor}.kl_loss_coef`]: 0.01, [`${actor}.use_kl_loss`]: true }],
  [["rllm.algorithm.kl_beta=0"], { [`${actor}.use_kl_loss`]: false }],
  [[`${actor}.kl_loss_coef=0.02`], { [`${actor}.kl_loss_coef`]: 0.02, [`${actor}.use_kl_loss`]: true }],
  [["rllm.algorithm.eps_clip=0.3"], { [`${actor}.clip_ratio_low`]: 0.3, [`${actor}.clip_ratio_high`]: 0.3 }],
  [[`${actor}.clip_ratio=0.1`, "rllm.algorithm.eps_clip_high=0.4"], { [`${actor}.clip_ratio_high`]: 0.4 }],
  [[`${actor}.optim.lr=1e-5`], { [`${actor}.optim.lr`]: 1e-5 }],
  [["training.learning_rate=1e-4"], { [`${actor}.optim.lr`]: 1e-4 }],
  [["actor_rollout_ref.model.lora_rank=8"], { "actor_rollout_ref.model.lora_rank": 8 }],
])("%j: the composed configuration has the expected values", (overrides, some) => {
  const { tree, ...rest } = composed(...overrides);
  const expected = Object.fromEntries(expectedValues({ tree, ...rest }));
  expect(expected).toMatchObject(some);
  for (const [path, value] of Object.entries(expected)) {
    const found = path.split(".").reduce<unknown>((section, name) => (section as Record<string, unknown>)[name], tree);
    expect([path, found]).toEqual([path, value]);
  }
});

test("a worker with another value is reported", () => {
  const expected = new Map<string, unknown>([
    ["a", 1],
    ["b", [2]],
    ["c", 3],
  ]);
  const held = { a: "worker", b: "driver" };
  expect(compareValues(expected, { values: { a: 1, b: [2] }, missing: ["c"], held })).toEqual({
    name: "settings",
    detail: "2 values with two names are the same in verl (1 read from a worker); this version of verl has no c",
  });
  expect(compareValues(expected, { values: { a: 5, b: [2], c: 3 }, missing: [], held })).toMatchObject({
    detail: "a is 5, not 1",
    fix: expect.any(String),
  });
});

test.each([
  ["actor_rollout_ref.actor.fsdp_config.param_offload", undefined],
  ["actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu", undefined],
  ["actor_rollout_ref.rollout.gpu_memory_utilization", "Hone's own vLLM server samples"],
  ["ray_kwargs.ray_init.num_cpus", undefined],
  ["critic.model.enable_gradient_checkpointing", undefined],
  ["critic.model.path", "the critic starts from model.name"],
  ["critic.cliprange_value", "verl's own trainer"],
  ["data.train_files", "the experiment's script reads the data"],
  ["reward_manager.name", "verl's own trainer"],
])("%s: %s", (key, reason) => {
  const { tree } = composed("trainer.device=cpu");
  if (reason === undefined) expect(reasonUnused(key, tree)).toBeUndefined();
  else expect(reasonUnused(key, tree)).toContain(reason);
});

const rollout = "actor_rollout_ref.rollout";

describe("verl's own rollout servers", () => {
  afterEach(() => {
    vi.unstubAllEnvs();
  });
  /** A machine with or without `nvidia-smi`; this one may have a driver. */
  const onMachine = (kind: "gpu" | "cpu") => {
    const folder = temporaryFolder(kind);
    if (kind === "gpu") writeFileSync(join(folder, "nvidia-smi"), "");
    vi.stubEnv("PATH", folder);
  };
  const two = ["trainer.n_gpus_per_node=2"];

  test.each([
    ["gpu", [`${rollout}.name=vllm`], "vllm"],
    ["gpu", [`${rollout}.name=sglang`], "sglang"],
    ["gpu", [`${rollout}.name=vllm`, "trainer.device=cpu"], undefined],
    ["cpu", [], undefined],
    ["cpu", [`${rollout}.name=mine`, `${rollout}.tensor_model_parallel_size=1`], "vllm"],
  ] as const)("on a %s, %j chooses %s", (machine, overrides, rollouts) => {
    onMachine(machine);
    expect(optionsOf(...two, ...overrides)).toMatchObject({ rollouts, ranks: 2 });
    expect(optionsOf(...two, ...overrides).config).toMatchObject({
      actor_rollout_ref: { rollout: { logprobs_mode: "raw_logprobs" } },
    });
  });

  test.each([
    [[`${rollout}.name=trtllm`], "Hone can sample only from verl's vLLM and SGLang servers"],
    [[`++${rollout}.disaggregation.enabled=true`], "Hone does not support separate prefill servers"],
    [[`${rollout}.tensor_model_parallel_size=4`], "uses 4 GPUs"],
    [["trainer.n_gpus_per_node=1"], "does not divide verl's 1 worker"],
    [["rllm.async_training.enable=true"], "need separate nodes"],
  ])("%j is refused before anything starts", (overrides, message) => {
    onMachine("gpu");
    expect(() => optionsOf(...two, `${rollout}.name=vllm`, ...overrides)).toThrow(message);
  });

  test.each([
    ["gpu_memory_utilization", undefined],
    ["checkpoint_engine.update_weights_bucket_megabytes", undefined],
    ["engine_kwargs.vllm.max_num_seqs", undefined],
    ["logprobs_mode", "the model's own log-probabilities"],
    ["agent.num_workers", "verl's own trainer"],
    ["calculate_log_probs", "verl's own trainer"],
  ])("read %s: %s", (key, reason) => {
    onMachine("gpu");
    const { tree } = composed(`${rollout}.name=vllm`);
    if (reason === undefined) expect(reasonUnused(`${rollout}.${key}`, tree)).toBeUndefined();
    else expect(reasonUnused(`${rollout}.${key}`, tree)).toContain(reason);
  });
});
