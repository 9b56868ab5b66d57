import { mkdirSync, writeFileSync } from "node:fs";
import { delimiter, join } from "node:path";
import { afterEach, describe, expect, it, test, vi } from "vitest";
import { composeConfig } from "../../config/compose.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { serverShare } from "../servers/started-server.ts";
import { samplerType, threadEnvironment, trainingProcesses, usableCores } from "./options.ts";

describe("cores", () => {
  describe("threadEnvironment", () => {
    const waiting = { OMP_WAIT_POLICY: "passive", GOMP_SPINCOUNT: "3000" };
    it.each([
      ["one thread a core", 0, {}, { OMP_NUM_THREADS: "4", ...waiting }],
      ["the user's policy", 0, { OMP_WAIT_POLICY: "active" }, { OMP_NUM_THREADS: "4" }],
      ["the user's spinning", 0, { GOMP_SPINCOUNT: "5" }, { OMP_NUM_THREADS: "4" }],
      ["the user's threads", 0, { OMP_NUM_THREADS: "2" }, { OMP_NUM_THREADS: "2", ...waiting }],
      ["the configuration over the environment", 3, { OMP_NUM_THREADS: "2" }, { OMP_NUM_THREADS: "3", ...waiting }],
    ])("%s", (_what, threads, environment, expected) => {
      expect(threadEnvironment(threads, 4, environment)).toEqual(expected);
    });

    it("finds at least one core", () => expect(usableCores()).toBeGreaterThanOrEqual(1));
  });
});

describe("machine", () => {
  const root = temporaryFolder("machine");
  const tools = join(root, "bin");
  mkdirSync(tools);
  writeFileSync(join(tools, "nvidia-smi"), '#!/bin/sh\nprintf "GPU 0: A\\nGPU 1: A\\nGPU 2: A\\nGPU 3: A\\n"\n', {
    mode: 0o755,
  });

  /** A machine with a driver, or without. */
  function onMachine(gpus: boolean, visible?: string): void {
    vi.stubEnv("PATH", gpus ? [tools, process.env.PATH].join(delimiter) : "/nowhere");
    if (visible === undefined) delete process.env.CUDA_VISIBLE_DEVICES;
    else vi.stubEnv("CUDA_VISIBLE_DEVICES", visible);
  }
  afterEach(() => vi.unstubAllEnvs());
  const configOf = (...overrides: string[]) => composeConfig({ overrides }).config;

  describe("local.sampler.type=auto", () => {
    test.each([
      ["without a GPU", false, [], "own"],
      ["with one", true, [], "vllm"],
      ["with one that the run does not use", true, ["local.device=cpu"], "own"],
      ["on an Apple GPU", true, ["local.device=mps"], "own"],
      ["with a running server", false, ["local.sampler.url=http://127.0.0.1:1"], "vllm"],
      ["is not asked if the type is named", true, ["local.sampler.type=own"], "own"],
    ])("%s", (_, gpus, overrides, expected) => {
      onMachine(gpus);
      expect(samplerType(configOf(...overrides))).toBe(expected);
    });
  });

  describe("local.processes=auto", () => {
    test.each([
      ["without a GPU", false, undefined, [], 1],
      ["with four", true, undefined, [], 4],
      ["with two visible ones", true, "2,3", [], 2],
      ["on one of them", true, undefined, ["local.device=cuda:1"], 1],
      ["before those of the server", true, undefined, ["local.sampler.devices=[3]"], 3],
      ["shared with the server", true, undefined, ["local.sampler.devices=[0]"], 1],
      ["on the CPU", true, undefined, ["local.device=cpu"], 1],
    ])("%s", (_, gpus, visible, overrides, expected) => {
      onMachine(gpus, visible);
      expect(trainingProcesses(configOf("local.processes=auto", ...overrides))).toBe(expected);
    });
  });

  test.each([
    ["its sleep frees it", [], 0],
    ["without sleep", ["local.sampler.sleep=false"], 0.5],
    ["asynchronous training", ["rllm.async_training.enable=true"], 0.5],
    ["on another GPU", ["local.sampler.sleep=false", "local.sampler.devices=[1]"], 0],
    ["no server", ["local.sampler.type=own"], 0],
  ])("the server's share of the trainer's GPU: %s", (_, overrides, expected) => {
    onMachine(true);
    expect(serverShare(configOf("local.device=cuda:0", ...overrides))).toBe(expected);
  });
});
