/** Benchmarks with little work: each must run to its end and print a value. The values mean nothing here. */
import { execFile } from "node:child_process";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { expect, it } from "vitest";
import { makeTinyModel } from "../src/base/python.fixture.ts";
import { nightly } from "../src/nightly.fixture.ts";
import { temporaryFolder } from "../src/temporary-folder.fixture.ts";

const folder = temporaryFolder("bench");
let made: Promise<string> | undefined;
const model = () => (made ??= makeTinyModel(join(folder, "model")));
const words = (text: string) => text.split(" ");

/** The flags of a short run, and what it prints at its end. */
const benchmarks: Record<string, { flags: () => string[] | Promise<string[]>; prints: RegExp }> = {
  "algorithm-curves": {
    flags: () => [...words("--steps 2 --seeds 1 --out"), join(folder, "curves")],
    prints: /ppo, KL in the reward +\d\.\d+ -> \d\.\d+/,
  },
  gateway: {
    flags: () => words("--seconds 0.2 --rounds 1 --connections 1,2 --skip-peers"),
    prints: /Hone, engine in its process +2 connections +[1-9]\d* requests\/s(?!.*ERRORS)/,
  },
  "grpo-step": {
    flags: () => words("--steps 2 --skip-peer --prompts 2 --samples 2 --new-tokens 4"),
    prints: /training reaches \d+% of the measured bfloat16 matrix-product peak/,
  },
  "long-run": { flags: () => words("--steps 8"), prints: /last 2 steps \/ first 2: \d/ },
  rollout: { flags: () => words("--episodes 20"), prints: /^24 episodes of 4 turns at the same time: \d/m },
  sampler: {
    flags: async () => ["--model", await model(), ...words("--sequences 2 --tokens 4 --rounds 1")],
    prints: /local engine +\d/,
  },
  sharded: {
    flags: async () => ["--model", await model(), ...words("--sequences 2 --tokens 8 --steps 1 --only fsdp")],
    prints: /2 processes, fsdp +\d/,
  },
  "small-updates": {
    flags: async () => [await model(), ...words("--systems hone-float32 --ranks 8 --rates 1e-4 --steps 1")],
    prints: /"change"/,
  },
  "tinker-server": {
    flags: () =>
      words(
        "--seconds 2 --samplers 2 --trainers 1 --steps 1 data.train_batch_size=1 rllm.rollout.n=2 data.max_response_length=2",
      ),
    prints: /over HTTP a step takes \d/,
  },
  verl: { flags: () => words("--steps 1 --skip-peer"), prints: /a loss of Hone's: a step takes \d/ },
  viewer: { flags: () => words("--episodes 512 --requests 1"), prints: /memory of the server: \d+ MB/ },
};

const run = (...args: string[]) =>
  promisify(execFile)(process.execPath, [
    fileURLToPath(new URL("../scripts/maintain/bench.mjs", import.meta.url)),
    ...args,
  ]);

it("has a short run and --help for each benchmark", async () => {
  const names = readdirSync(new URL(".", import.meta.url), { withFileTypes: true });
  expect(Object.keys(benchmarks)).toEqual(names.flatMap((entry) => (entry.isDirectory() ? entry.name : [])).sort());
  for (const name of Object.keys(benchmarks)) {
    expect((await run(name, "--help")).stdout, name).toContain(`bench -- ${name}`);
  }
});

/** Without Python, with an agent's calls, and with the worker. */
const few = ["gateway", "rollout", "sampler"];
const chosen = Object.entries(benchmarks).filter(([name]) => nightly || few.includes(name));

it.each(chosen)("%s runs", async (name, { flags, prints }) => {
  const { stdout } = await run(name, ...(await flags()));
  expect(stdout).toMatch(prints);
});
