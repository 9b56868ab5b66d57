/**
 * Kills the inference server that a run started, at random instants, and resumes the run each time:
 *   npx tsx scripts/proofs/server-kills/main.ts [kills] [seed]
 * Each run must stop with one sentence and leave no process, and the last resume must have every step exactly once.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { makeTinyModel } from "../../../src/python/run-python.fixture.ts";
import { uniforms } from "../../../src/random.ts";

const kills = Number(process.argv[2] ?? 10);
const random = uniforms(Number(process.argv[3] ?? 1));
const totalSteps = 400;

const root = mkdtempSync(join(tmpdir(), "hone-server-kills-"));
const folder = join(root, "run");
const model = await makeTinyModel(join(root, "model"), 0, 64);

const command = [
  "train",
  "src/cli/toy-experiment.fixture.ts",
  `model.name=${model}`,
  "model.train_unembed=false",
  "training.learning_rate=0.003",
  "local.sampler.type=vllm",
  `rllm.trainer={total_batches: ${totalSteps}, save_freq: 1, test_freq: 0}`,
];

function hone(...more: string[]): { child: ChildProcess; output: () => string; ended: Promise<number | null> } {
  const child = spawn(process.execPath, ["--import", "tsx", "src/cli/main.ts", ...command, ...more]);
  let output = "";
  for (const stream of [child.stdout, child.stderr]) stream?.on("data", (text) => (output += text));
  const ended = new Promise<number | null>((resolve) => child.once("close", resolve));
  return { child, output: () => output, ended };
}

/** Programs of vLLM below a process, the server first. */
function serversBelow(pid: number): number[] {
  let children: number[];
  try {
    children = readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8").split(" ").filter(Boolean).map(Number);
  } catch {
    return [];
  }
  return children.flatMap((child) => [...(isServer(child) ? [child] : []), ...serversBelow(child)]);
}

function isServer(pid: number): boolean {
  try {
    return /vllm\.entrypoints|VLLM::/.test(readFileSync(`/proc/${pid}/cmdline`, "utf8"));
  } catch {
    return false;
  }
}

function steps(): number[] {
  const file = join(folder, "metrics.jsonl");
  if (!existsSync(file)) return [];
  const lines = readFileSync(file, "utf8").split("\n").slice(0, -1);
  const entries = lines.map((line) => JSON.parse(line) as { step: number; kind?: string });
  return entries.filter(({ kind }) => kind === undefined).map(({ step }) => step);
}

const resumable = () => {
  const checkpoints = join(folder, "checkpoints");
  return existsSync(checkpoints) && readdirSync(checkpoints).length > 0;
};
const isComplete = (numbers: number[]) => numbers.every((step, index) => step === index + 1);

/** Runs until it has done steps of its own, or a random instant of its start. */
async function killOnce(number: number): Promise<void> {
  const before = steps().length;
  const run = resumable() ? hone("--resume", folder) : hone(`rllm.trainer.run_dir=${folder}`);
  const begin = performance.now();
  const inStart = random() < 0.2;
  while (run.child.exitCode === null) {
    const isStarted = serversBelow(run.child.pid!).length > 0;
    if (isStarted && (inStart || steps().length > before)) break;
    await sleep(100);
  }
  await sleep(random() * (inStart ? 40_000 : 8000));
  const found = serversBelow(run.child.pid!);
  const [server] = found;
  if (server !== undefined) process.kill(server, "SIGKILL");
  const killed = performance.now();
  const code = await run.ended;
  const seconds = (performance.now() - killed) / 1000;
  const left = found.filter((pid) => existsSync(`/proc/${pid}`) && isServer(pid));
  const sentence = /^error: (.*)$/m.exec(run.output())?.[1] ?? run.output().slice(-300);
  const done = steps();
  const fine = code === 1 && left.length === 0 && isComplete(done) && /vLLM server ended/.test(sentence);
  console.log(
    `${number}. ${fine ? "ok" : "WRONG"}: killed ${((killed - begin) / 1000).toFixed(0)} s after the start, after step ${done.length}; exit ${code} after ${seconds.toFixed(1)} s, ${left.length} processes left: ${sentence}`,
  );
}

try {
  for (let number = 1; number <= kills; number++) await killOnce(number);
  const before = steps().length;
  const last = hone("--resume", folder, `rllm.trainer.total_batches=${before + 3}`);
  const code = await last.ended;
  const done = steps();
  console.log(`resumed: exit ${code}, ${done.length} steps, ${isComplete(done) ? "each once" : `WRONG: ${done}`}`);
} finally {
  rmSync(root, { recursive: true, force: true });
}
