/**
 * Kills a program that a run has started, at random instants, and resumes the run each time:
 *   npx tsx scripts/proofs/kills/main.ts server|rank|verl [kills] [seed] [overrides...]
 * `server` kills the vLLM server, `rank` one of two processes that train the model, `verl` a worker, the raylet, the driver
 * or the vLLM server of a run on Ray, each in turn. Each run must stop with one sentence and leave no process. The last
 * resume must have every step exactly once; that of ranks equals an uninterrupted run.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { isDeepStrictEqual } from "node:util";
import { makeTinyModel } from "../../../src/base/python.fixture.ts";
import { uniforms } from "../../../src/base/values.ts";

interface Scenario {
  overrides: string[];
  /** Match the command lines of the processes that are killed in turn and must end with the run. */
  victims: RegExp[];
  /** What the error says. */
  sentence: RegExp;
  /** The longest wait before a kill, during the start and after a step. */
  seconds: { start: number; step: number };
  /** Whether a resumed run has the numbers of an uninterrupted one. */
  isExact: boolean;
}

const scenarios: Record<string, Scenario> = {
  server: {
    overrides: ["local.sampler.type=vllm"],
    victims: [/vllm\.entrypoints|VLLM::/],
    sentence: /vLLM server ended/,
    seconds: { start: 40, step: 8 },
    isExact: false,
  },
  rank: {
    overrides: ["local.processes=2"],
    victims: [/hone_sharded\.rank/],
    sentence: /rank \d of 2 \(process \d+\) ended by SIGKILL/,
    seconds: { start: 20, step: 5 },
    isExact: true,
  },
  verl: {
    overrides: ["rllm/backend=verl", "trainer={n_gpus_per_node: 2, device: cpu}"],
    victims: [/^ray::PolicyWorker/, /\/raylet\/raylet/, /-m hone_verl/, /vllm\.entrypoints/],
    sentence: /^error: /m,
    seconds: { start: 60, step: 8 },
    isExact: false,
  },
};

const [name = "", kills = "10", seed = "1", ...more] = process.argv.slice(2);
const scenario = scenarios[name];
if (scenario === undefined) throw new Error(`the first argument is one of ${Object.keys(scenarios).join(", ")}`);
const random = uniforms(Number(seed));

const root = mkdtempSync(join(tmpdir(), "hone-kills-"));
const folder = join(root, "run");
const model = await makeTinyModel(join(root, "model"), 0, 64);

function hone(...rest: string[]): { child: ChildProcess; output: () => string; ended: Promise<number | null> } {
  const args = [
    "train",
    "src/apps/cli/toy-experiment.fixture.ts",
    `model.name=${model}`,
    "model.train_unembed=false",
    "training.learning_rate=0.003",
    "rllm.trainer={total_batches: 400, save_freq: 1, test_freq: 0}",
    ...scenario!.overrides,
    ...more,
    ...rest,
  ];
  const child = spawn(process.execPath, ["--import", "tsx", "src/apps/cli/main.ts", ...args]);
  let output = "";
  for (const stream of [child.stdout, child.stderr]) stream?.on("data", (text) => (output += text));
  const ended = new Promise<number | null>((resolve) => child.once("close", resolve));
  return { child, output: () => output, ended };
}

/** The command lines of all processes below one, in the order of their starts. */
function below(pid: number): Map<number, string> {
  try {
    const threads = readdirSync(`/proc/${pid}/task`);
    const children = threads.flatMap((thread) =>
      readFileSync(`/proc/${pid}/task/${thread}/children`, "utf8").split(" ").filter(Boolean).map(Number),
    );
    return new Map(children.flatMap((child) => [[child, commandOf(child)] as const, ...below(child)]));
  } catch {
    return new Map();
  }
}

function commandOf(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8").replaceAll("\0", " ");
  } catch {
    return "";
  }
}

/** Those that match; by default all that may be killed. */
const victimsBelow = (pid: number, patterns = scenario!.victims): number[] =>
  [...below(pid)].filter(([, command]) => patterns.some((pattern) => pattern.test(command))).map(([child]) => child);

/** The metrics of the run's steps, without those that depend on time or on the number of all steps. */
function metricsOf(run: string): Record<string, unknown>[] {
  const file = join(run, "metrics.jsonl");
  if (!existsSync(file)) return [];
  const lines = readFileSync(file, "utf8").split("\n").slice(0, -1);
  const entries = lines.map((line) => Object.entries(JSON.parse(line) as Record<string, unknown>));
  return entries
    .map((entry) => Object.fromEntries(entry.filter(([key]) => !/^(time|perf|memory|engine|progress)/.test(key))))
    .filter(({ kind }) => kind === undefined);
}
const steps = () => metricsOf(folder).map(({ step }) => step as number);

const resumable = () => {
  const checkpoints = join(folder, "checkpoints");
  return existsSync(checkpoints) && readdirSync(checkpoints).length > 0;
};
const isComplete = (numbers: number[]) => numbers.every((step, index) => step === index + 1);

/** Runs until it has done steps of its own, or a random instant of its start. */
async function killOnce(number: number): Promise<void> {
  const { sentence: expected, seconds } = scenario!;
  const before = steps().length;
  const run = resumable() ? hone("--resume", folder) : hone(`rllm.trainer.run_dir=${folder}`);
  const begin = performance.now();
  const inStart = random() < 0.2;
  while (run.child.exitCode === null) {
    const isStarted = victimsBelow(run.child.pid!).length > 0;
    if (isStarted && (inStart || steps().length > before)) break;
    await sleep(100);
  }
  await sleep(random() * 1000 * (inStart ? seconds.start : seconds.step));
  const all = new Map(victimsBelow(run.child.pid!).map((pid) => [pid, commandOf(pid)]));
  const turn = number % scenario!.victims.length;
  const found = victimsBelow(run.child.pid!, [scenario!.victims[turn]!]);
  const chosen = name === "rank" ? number % 2 : 0;
  if (found[chosen] !== undefined) process.kill(found[chosen], "SIGKILL");
  const killed = performance.now();
  const code = await run.ended;
  const waited = (performance.now() - killed) / 1000;
  const remaining = () => [...all].filter(([pid, command]) => command !== "" && commandOf(pid) === command);
  // Ray's processes end by themselves a moment after its raylet.
  for (let tries = 0; tries < 100 && remaining().length > 0; tries++) await sleep(100);
  const left = remaining();
  const done = steps();
  const isFine = code === 1 && left.length === 0 && isComplete(done) && expected.test(run.output());
  const sentence = /^error: (.*)$/m.exec(run.output())?.[1] ?? run.output().slice(-300);
  console.log(
    `${number}. ${isFine ? "ok" : "WRONG"}: killed ${name} ${turn + chosen} ${((killed - begin) / 1000).toFixed(0)} s after the start, after step ${done.length}; exit ${code} after ${waited.toFixed(1)} s, ${left.length} processes left: ${sentence}`,
  );
}

try {
  for (let number = 1; number <= Number(kills); number++) await killOnce(number);
  const total = `rllm.trainer.total_batches=${steps().length + 3}`;
  const code = await hone("--resume", folder, total).ended;
  const done = steps();
  console.log(`resumed: exit ${code}, ${done.length} steps, ${isComplete(done) ? "each once" : `WRONG: ${done}`}`);
  if (scenario.isExact) {
    const whole = join(root, "whole");
    await hone(`rllm.trainer.run_dir=${whole}`, total).ended;
    const other = metricsOf(whole);
    const different = metricsOf(folder).flatMap((line, index) =>
      Object.keys({ ...line, ...other[index] })
        .filter((key) => !isDeepStrictEqual(line[key], other[index]?.[key]))
        .map((key) => `step ${index + 1}: ${key} ${line[key]}, uninterrupted ${other[index]?.[key]}`),
    );
    const isEqual = different.length === 0 && other.length === done.length;
    console.log(isEqual ? "equal to an uninterrupted run" : `WRONG: ${different.join("\n")}`);
  }
} finally {
  rmSync(root, { recursive: true, force: true });
}
