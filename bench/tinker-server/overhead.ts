/** The first example by the engine in this process, and by the same engine behind `hone serve` in another. */
import { join } from "node:path";
import experiment from "../../examples/larger-number/train.ts";
import type { Engine } from "../../src/backends/engine.ts";
import { openLocalEngine } from "../../src/backends/local/engine.ts";
import { openTinkerEngine } from "../../src/backends/tinker/engine.ts";
import { mean, percentile } from "../../src/base/values.ts";
import { loadChat } from "../../src/chat/chat.ts";
import { train } from "../../src/trainer/train.ts";
import { startServe } from "./serve-process.ts";
import { type StepTime, timedEngine } from "./timed-engine.ts";
import { takeTurns } from "./turns.ts";

const model = "smollm2-135m-instruct";
const maxRatio = 1.05;

interface Side {
  name: string;
  engine: Engine;
  overrides: string[];
  close(): Promise<void>;
}

export interface OverheadOptions {
  folder: string;
  steps: number;
  /** Compares two engines in this process: their difference is this machine's measurement error. */
  control: boolean;
  /** Settings of the first example. */
  overrides: readonly string[];
}

export async function runOverhead({ folder, steps, control, overrides }: OverheadOptions): Promise<void> {
  const sides = [await inProcess(folder, "in process")];
  try {
    sides.push(control ? await inProcess(folder, "in process too") : await overHttp(folder));
    const [local, remote] = await measure(sides, steps, folder, overrides);
    const ratio = compare(local!, remote!, sides[1]!.name);
    console.log(`${ratio < maxRatio ? "holds" : "FAILS"}: at most ${maxRatio} times the time`);
  } finally {
    await Promise.all(sides.map((side) => side.close()));
  }
}

async function inProcess(folder: string, name: string): Promise<Side> {
  const engine = await openLocalEngine({ model, logFile: join(folder, `${name}.log`) });
  return { name, engine, overrides: [], close: engine.close };
}

async function overHttp(folder: string): Promise<Side> {
  const serve = await startServe(model, folder);
  const { resolveModel } = await import("../../src/backends/local/models.ts");
  const engine = await openTinkerEngine({
    ...{ baseUrl: serve.url, apiKey: "tml-local", model, overlap: true },
    tokenizerFolder: () => resolveModel(model),
  });
  return {
    name: "over HTTP",
    engine,
    overrides: ["rllm/backend=tinker", `tinker_base_url=${serve.url}`],
    async close() {
      await engine.close();
      await serve.stop();
    },
  };
}

/** Both sides train the same run, taking turns after each step. The first step is a warm-up and is not counted. */
async function measure(
  sides: readonly Side[],
  steps: number,
  folder: string,
  settings: readonly string[],
): Promise<StepTime[][]> {
  const trainer = [`total_batches=${steps + 1}`, "save_freq=0", "logger=[]", "val_before_train=false"].map(
    (setting) => `rllm.trainer.${setting}`,
  );
  // By default, the backends train different layers.
  const same = ["model.train_attn=true", "model.train_mlp=true", "model.train_unembed=false", "model.lora_rank=32"];
  // With constant weights, both sides sample the same tokens, despite rounding. The time of a step does not depend on the
  // size of the update.
  same.push("training.learning_rate=1e-12");
  const turns = takeTurns(sides.length);
  const runs = sides.map(async ({ name, engine, overrides }, side) => {
    const timed = timedEngine(engine, turns, side);
    try {
      const { history } = await train(experiment, {
        overrides: [
          ...overrides,
          ...same,
          ...trainer,
          ...settings,
          `rllm.trainer.run_dir=${join(folder, `run-${side}`)}`,
        ],
        engine: { engine: timed.engine, chat: loadChat(engine.model.directory) },
      });
      print(
        name,
        timed.steps,
        history.map(({ metrics }) => metrics["reward/mean"]!),
      );
      return timed.steps.slice(1);
    } finally {
      turns.leave(side);
    }
  });
  return Promise.all(runs);
}

/** Prints and returns the ratio of step times, comparing each step with the one right before it. */
function compare(local: readonly StepTime[], remote: readonly StepTime[], name: string): number {
  const pairs = local.map((left, index) => [left, remote[index]!] as const);
  const differ = pairs.filter(
    ([left, right]) => left.sampledTokens !== right.sampledTokens || left.trainedTokens !== right.trainedTokens,
  ).length;
  console.log(`${differ} of ${pairs.length} steps differ in how many tokens they sample and train`);
  const ratios = pairs.map(([left, right]) => right.step / left.step);
  console.log(`the ratio of each pair of steps: ${ratios.map((one) => one.toFixed(3)).join(" ")}`);
  const more = (part: keyof StepTime) => {
    const share = median(pairs.map(([left, right]) => (right[part] - left[part]) / left.step));
    return `${part} ${(100 * share).toFixed(1)}%`;
  };
  const ratio = median(ratios);
  const spread = (percentile(ratios, 75) - percentile(ratios, 25)) / Math.sqrt(ratios.length);
  console.log(
    `${name} a step takes ${ratio.toFixed(3)} times as long: ${(100 * (ratio - 1)).toFixed(1)}% overhead, give or take ` +
      `${(100 * spread).toFixed(1)}% (${["sampling", "training", "publishing"].map((part) => more(part as keyof StepTime)).join(", ")})`,
  );
  return ratio;
}

const median = (values: readonly number[]) => percentile(values, 50);

function print(name: string, all: readonly StepTime[], rewards: readonly number[]): void {
  const steps = all.slice(1);
  const shown = (part: keyof StepTime) => median(steps.map((step) => step[part])).toFixed(2);
  const total = (part: keyof StepTime) => all.reduce((sum, step) => sum + step[part], 0);
  console.log(
    `${name}: ${shown("step")} s a step (sampling ${shown("sampling")}, training ${shown("training")}, publishing ` +
      `${shown("publishing")}); ${total("sampledTokens")} tokens sampled, ${total("trainedTokens")} trained, reward ` +
      `${mean(rewards).toFixed(4)}; steps ${steps.map(({ step }) => step.toFixed(2)).join(" ")}`,
  );
}
