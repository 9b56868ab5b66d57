/**
 * A long run of tiny steps: does a step late in the run cost as much as an early one, and does memory stay flat?
 *
 *   npm run bench -- long-run [--steps 20000] [--logger console,tensorboard] [key=value ...]
 *
 * Trains a table of letter pairs with validation, checkpoints, episodes on disk and all loggers asked for. Prints, for
 * each thousand steps, milliseconds a step by the wall clock, by `time/step` and of CPU time (which other programs on the
 * machine do not change), and the memory in use after a garbage collection; then the last thousand compared with the first.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { singleTurn } from "../../src/agents/workflows.ts";
import { mean } from "../../src/base/values.ts";
import { generated } from "../../src/data/dataset.ts";
import { tabularEngine } from "../../src/testing/index.ts";
import { eachMetrics } from "../../src/tracking/run-folder.ts";
import { defineExperiment } from "../../src/trainer/experiment.ts";
import { train } from "../../src/trainer/train.ts";

const { values: flags, positionals: overrides } = parseArgs({
  allowPositionals: true,
  options: { steps: { type: "string", default: "20000" }, logger: { type: "string", default: "console,tensorboard" } },
});
const steps = Number(flags.steps);
const window = Math.min(1000, Math.floor(steps / 4));

setFlagsFromString("--expose-gc");
const collectGarbage = runInNewContext("gc") as () => void;
const megabytes = (bytes: number) => bytes / 1e6;

interface Mark {
  step: number;
  /** Milliseconds since the process began. */
  time: number;
  /** Milliseconds of CPU time since then. */
  cpu: number;
  /** Megabytes in use after a garbage collection. */
  heap: number;
  resident: number;
}
const marks: Mark[] = [];

function mark(step: number): void {
  collectGarbage();
  const { heapUsed, arrayBuffers, rss } = process.memoryUsage();
  const { user, system } = process.cpuUsage();
  const cpu = (user + system) / 1000;
  marks.push({
    step,
    time: performance.now(),
    cpu,
    heap: megabytes(heapUsed + arrayBuffers),
    resident: megabytes(rss),
  });
}

let rollouts = 0;
const rolloutsPerStep = 8;
const experiment = defineExperiment({
  train: generated("letters", 64, (index) => ({ index })),
  validation: generated("letters-validation", 4, (index) => ({ index })),
  workflow: async (task, context) => {
    if (context.purpose === "train" && rollouts++ % (window * rolloutsPerStep) === 0) {
      mark(Math.floor(rollouts / rolloutsPerStep));
    }
    return answer(task, context);
  },
  config: {
    model: { lora_rank: 0 },
    rllm: {
      rollout: { n: 4 },
      trainer: { total_batches: steps, logger: flags.logger.split(",") as never, save_freq: 100, test_freq: 100 },
    },
    training: { learning_rate: 0.001, max_ckpt_num: 2 },
    data: { train_batch_size: 2, max_response_length: 6 },
  },
});
const answer = singleTurn<{ index: number }>({
  prompt: () => "b",
  reward: (_row, reply) => [...reply.text].filter((letter) => letter === "a").length / 6,
});

const root = mkdtempSync(join(tmpdir(), "hone-long-run-"));
/** The console's lines are formatted as usual and discarded. */
const write = process.stdout.write;
process.stdout.write = () => true;
try {
  const engine = tabularEngine({ alphabet: "abc" });
  const folder = join(root, "run");
  await train(experiment, {
    engine: { engine, chat: engine.chat },
    overrides: [`rllm.trainer.run_dir=${folder}`, ...overrides],
  });
  mark(steps);
  process.stdout.write = write;
  report(Array.from(eachMetrics(folder), ({ metrics }) => metrics["time/step"]! * 1000));
} finally {
  process.stdout.write = write;
  rmSync(root, { recursive: true, force: true });
}

/** @param told `[steps]` milliseconds by `time/step` */
function report(told: readonly number[]): void {
  console.log("      steps   ms/step   time/step    CPU ms   heap MB   resident MB");
  const rows = marks.slice(1).map((end, index) => {
    const begin = marks[index]!;
    const wall = (end.time - begin.time) / (end.step - begin.step);
    const cpu = (end.cpu - begin.cpu) / (end.step - begin.step);
    return { ...end, from: begin.step, wall, cpu, told: mean(told.slice(begin.step, end.step)) };
  });
  for (const { from, step, wall, cpu, told: said, heap, resident } of rows) {
    const range = `${from + 1}-${step}`.padStart(11);
    const cells = [wall.toFixed(2).padStart(10), said.toFixed(2).padStart(12), cpu.toFixed(2).padStart(10)];
    console.log(`${range}${cells.join("")}${heap.toFixed(1).padStart(10)}${resident.toFixed(0).padStart(14)}`);
  }
  const [first, last] = [rows[0]!, rows.at(-1)!];
  const ratio = (name: "wall" | "cpu") => (last[name] / first[name]).toFixed(2);
  console.log(
    `last ${window} steps / first ${window}: ${ratio("wall")} times the time a step, ${ratio("cpu")} times the CPU time`,
  );
  console.log(`heap ${(last.heap - first.heap).toFixed(1)} MB more than after the first ${window}`);
}
