import { expect, test } from "vitest";
import { type LaunchOptions, sglangLaunch, vllmLaunch } from "./launch.ts";

const options: LaunchOptions = {
  model: { directory: "/models/tiny", dtype: "bfloat16", maxLength: 4096 },
  servedName: "hone-1",
  port: 4000,
  apiKey: "secret",
  seed: 7,
  loraRank: 24,
  adapters: 4,
  tensorParallel: 2,
  readsImages: true,
  routing: true,
  timeoutSeconds: 1800,
  gpu: undefined,
};
const gpu = { visible: "1,2", memoryShare: 0.4, sleep: true };
const machine = { freeBytes: 20 * 2 ** 30, environment: {}, threads: { OMP_NUM_THREADS: "8" } };

/** Flags with their values. */
function flagsOf(args: readonly string[]): Record<string, string | true> {
  const flags: Record<string, string | true> = {};
  for (const [index, arg] of args.entries()) {
    const next = args[index + 1];
    if (arg.startsWith("--")) flags[arg] = next === undefined || next.startsWith("--") ? true : next;
  }
  return flags;
}

test("vLLM on a CPU", () => {
  const { args, env } = vllmLaunch(options, machine);
  expect(args.slice(0, 2)).toEqual(["-m", "vllm.entrypoints.openai.api_server"]);
  expect(flagsOf(args)).toEqual({
    "--model": "/models/tiny",
    "--served-model-name": "hone-1",
    "--host": "127.0.0.1",
    "--port": "4000",
    "--dtype": "bfloat16",
    "--max-model-len": "auto",
    "--seed": "7",
    "--logprobs-mode": "raw_logprobs",
    "--enable-scale-out": true,
    "--enable-return-routed-experts": true,
    "--disable-uvicorn-access-log": true,
    "--enable-lora": true,
    // The least rank that vLLM knows and that suffices.
    "--max-lora-rank": "32",
    "--max-loras": "4",
    "--tensor-parallel-size": "2",
    "--mm-processor-kwargs": '{"use_fast":false}',
    "--enforce-eager": true,
    "--no-enable-chunked-prefill": true,
    "--max-num-batched-tokens": "8192",
    "--block-size": "32",
  });
  expect(env).toMatchObject({ VLLM_SERVER_DEV_MODE: "1", VLLM_ALLOW_RUNTIME_LORA_UPDATING: "1", HF_HUB_OFFLINE: "1" });
  // Not among the arguments, which every user of the machine can see.
  expect([env.VLLM_API_KEY, args.includes("secret")]).toEqual(["secret", false]);
  expect(env.CUDA_VISIBLE_DEVICES).toBeUndefined();
});

test.each([
  [2, {}, "1"],
  [20, {}, "2"],
  [500, {}, "4"],
  [500, { VLLM_CPU_KVCACHE_SPACE: "9" }, "9"],
])("%d GiB free, environment %j: vLLM on a CPU caches %s GiB", (gibibytes, environment, expected) => {
  const { env } = vllmLaunch(options, { ...machine, freeBytes: gibibytes * 2 ** 30, environment });
  expect(env.VLLM_CPU_KVCACHE_SPACE).toBe(expected);
});

test("vLLM on a CPU uses the trainer's cores, unless the environment binds it", () => {
  expect(vllmLaunch(options, machine).env).toMatchObject({ OMP_NUM_THREADS: "8", VLLM_CPU_OMP_THREADS_BIND: "nobind" });
  const { env } = vllmLaunch(options, { ...machine, environment: { VLLM_CPU_OMP_THREADS_BIND: "0-3" } });
  expect(env).not.toHaveProperty("VLLM_CPU_OMP_THREADS_BIND");
  expect(env).not.toHaveProperty("OMP_NUM_THREADS");
});

test.each([
  [600.5, {}, "601"],
  [600, { VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS: "20" }, "20"],
])(
  "with local.sampler.timeout=%d and the environment %j, a step of vLLM may take %s s",
  (seconds, environment, limit) => {
    const { env } = vllmLaunch({ ...options, timeoutSeconds: seconds }, { ...machine, environment });
    // vLLM's own limits of 300 s for a step and 600 s for the start end the engine on a busy machine.
    expect([env.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS, env.VLLM_ENGINE_READY_TIMEOUT_S]).toEqual([limit, "1800"]);
  },
);

test("vLLM on GPUs", () => {
  const { args, env } = vllmLaunch({ ...options, loraRank: undefined, gpu }, machine);
  const flags = flagsOf(args);
  expect(flags).toMatchObject({
    "--gpu-memory-utilization": "0.4",
    "--tensor-parallel-size": "2",
    "--mm-processor-kwargs": '{"use_fast":false}',
    "--enable-sleep-mode": true,
  });
  for (const flag of ["--enforce-eager", "--enable-lora", "--max-loras"]) expect(flags).not.toHaveProperty(flag);
  expect(env.CUDA_VISIBLE_DEVICES).toBe("1,2");
  expect(env).not.toHaveProperty("VLLM_CPU_KVCACHE_SPACE");
  const awake = vllmLaunch({ ...options, gpu: { ...gpu, sleep: false } }, machine);
  expect(awake.args).not.toContain("--enable-sleep-mode");
  expect(awake.args).not.toContain("--weight-transfer-config");
  const broadcast = vllmLaunch({ ...options, gpu: { ...gpu, nccl: "/lib/libnccl.so.2" } }, machine);
  expect(flagsOf(broadcast.args)["--weight-transfer-config"]).toBe('{"backend":"nccl"}');
  expect(broadcast.env.VLLM_NCCL_SO_PATH).toBe("/lib/libnccl.so.2");
});

test("SGLang on GPUs", () => {
  const { args, env } = sglangLaunch({ ...options, gpu });
  expect(args.slice(0, 2)).toEqual(["-m", "sglang.launch_server"]);
  expect(flagsOf(args)).toEqual({
    "--model-path": "/models/tiny",
    "--served-model-name": "hone-1",
    "--host": "127.0.0.1",
    "--port": "4000",
    "--dtype": "bfloat16",
    "--random-seed": "7",
    "--api-key": "secret",
    "--mem-fraction-static": "0.4",
    "--tp-size": "2",
    "--disable-fast-image-processor": true,
    "--enable-memory-saver": true,
    "--enable-weights-cpu-backup": true,
    "--enable-lora": true,
    "--max-lora-rank": "24",
    "--max-loras-per-batch": "4",
    "--lora-target-modules": "all",
  });
  expect(env).toMatchObject({ HF_HUB_OFFLINE: "1", CUDA_VISIBLE_DEVICES: "1,2" });
});
