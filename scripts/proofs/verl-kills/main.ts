/**
 * Kills a part of a run on verl's backend (a worker, the raylet, the driver, the inference server), each in turn, and
 * resumes the run each time:
 *   npx tsx scripts/proofs/verl-kills/main.ts [rounds]
 * Each run must stop with one sentence and leave no process. At the end every step must be there exactly once, with the
 * metrics of a run that nothing interrupted.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { makeTinyModel } from "../../../src/python/run-python.fixture.ts";

const victims = {
  worker: /^ray::PolicyWorker/,
  raylet: /\/raylet\/raylet/,
  driver: /-m\0hone_verl/,
  server: /vllm\.entrypoints/,
};
const rounds = Number(process.argv[2] ?? 1);
const kills = Array.from({ length: rounds }, () => Object.entries(victims)).flat();
/** Steps of a run before its kill. */
const stepsEach = 3;
const totalSteps = kills.length * stepsEach + 2;

const root = mkdtempSync(join(tmpdir(), "hone-verl-kills-"));
const folder = join(root, "run");
const model = await makeTinyModel(join(root, "model"), 0, 64);

const command = [
  "train",
  "src/cli/toy-experiment.fixture.ts",
  "rllm/backend=verl",
  "trainer={n_gpus_per_node: 2, device: cpu}",
  `model.name=${model}`,
  "model.train_unembed=false",
  "training.learning_rate=0.003",
  `rllm.trainer={total_batches: ${totalSteps}, save_freq: 1, test_freq: 0}`,
];

function hone(...more: string[]): { child: ChildProcess; output: () => string; ended: Promise<number | null> } {
  const child = spawn(process.execPath, ["--import", "tsx", "src/cli/main.ts", ...command, ...more]);
  let output = "";
  for (const stream of [child.stdout, child.stderr]) stream?.on("data", (text) => (output += text));
  const ended = new Promise<number | null>((resolve) => child.once("close", resolve));
  return { child, output: () => output, ended };
}

const commandOf = (pid: number): string => {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8");
  } catch {
    return "";
  }
};

/** All processes below one. */
function below(pid: number): number[] {
  let children: number[];
  try {
    const threads = readdirSync(`/proc/${pid}/task`);
    const texts = threads.map((thread) => readFileSync(`/proc/${pid}/task/${thread}/children`, "utf8"));
    children = texts.flatMap((text) => text.split(" ").filter(Boolean).map(Number));
  } catch {
    return [];
  }
  return children.flatMap((child) => [child, ...below(child)]);
}

function metrics(run: string): { step: number; values: unknown }[] {
  const file = join(run, "metrics.jsonl");
  if (!existsSync(file)) return [];
  const lines = readFileSync(file, "utf8").split("\n").slice(0, -1);
  return lines
    .map((line) => JSON.parse(line) as Record<string, unknown> & { step: number })
    .filter(({ kind }) => kind === undefined)
    .map((line) => ({ step: line.step, values: [line["reward/mean"], line["loss/total"] ?? line["train/grad_norm"]] }));
}

const isComplete = () => metrics(folder).every(({ step }, index) => step === index + 1);

async function kill([name, pattern]: (typeof kills)[number]): Promise<void> {
  const before = metrics(folder).length;
  const run = before > 0 ? hone("--resume", folder) : hone(`rllm.trainer.run_dir=${folder}`);
  while (run.child.exitCode === null && metrics(folder).length < before + stepsEach) await sleep(100);
  const all = new Map(below(run.child.pid!).map((pid) => [pid, commandOf(pid)]));
  const [victim] = [...all].find(([, command]) => pattern.test(command)) ?? [];
  if (victim !== undefined) process.kill(victim, "SIGKILL");
  const killed = performance.now();
  const code = await run.ended;
  const seconds = (performance.now() - killed) / 1000;
  const left = [...all].filter(([pid, command]) => command !== "" && commandOf(pid) === command).length;
  const sentence = /^error: (.*)$/m.exec(run.output())?.[1] ?? run.output().slice(-2000);
  const fine = victim !== undefined && code === 1 && left === 0 && isComplete();
  const what = `${name} after step ${metrics(folder).length}, of ${all.size} processes`;
  console.log(
    `${fine ? "ok" : "WRONG"}: killed the ${what}; exit ${code} after ${seconds.toFixed(1)} s, ${left} left: ${sentence}`,
  );
}

try {
  for (const one of kills) await kill(one);
  const last = hone("--resume", folder);
  const code = await last.ended;
  const done = metrics(folder);
  const whole = done.length === totalSteps && isComplete();
  console.log(`resumed: exit ${code}, ${done.length} steps, ${whole ? "each once" : "WRONG"}`);
  const alone = join(root, "alone");
  await hone(`rllm.trainer.run_dir=${alone}`).ended;
  const same = metrics(alone).filter(({ values }, index) => `${values}` === `${done[index]?.values}`).length;
  console.log(`${same} of ${totalSteps} steps have exactly the metrics of a run without kills`);
} finally {
  rmSync(root, { recursive: true, force: true });
}
