/** The first example by the engine in this process, and by the same engine behind `hone serve` in another. */
import { join } from "node:path";
import experiment from "../../examples/larger-number/train.ts";
import type { Engine } from "../../src/backends/engine.ts";
import { openLocalEngine } from "../../src/backends/local/engine.ts";
import { openTinkerEngine } from "../../src/backends/tinker/engine.ts";
import { loadChat } from "../../src/chat/chat.ts";
import { mean, percentile } from "../../src/statistics.ts";
import { train } from "../../src/trainer/train.ts";
import { startServe } from "./serve-process.ts";

const model = "smollm2-135m-instruct";
const most = 1.05;

interface Side {
  name: string;
  step: number[];
  sampling: number[];
  training: number[];
  rewards: number[];
}

/** Gives whether the overhead is as small as it should be. */
export async function runOverhead({ folder, steps }: { folder: string; steps: number }): Promise<boolean> {
  const local = await openLocalEngine({ model, logFile: join(folder, "worker.log") });
  const serve = await startServe(model, folder);
  try {
    const remote = await openTinkerEngine({
      ...{ baseUrl: serve.url, apiKey: "tml-local", model, overlap: true },
      tokenizerFolder: async () => local.model.directory,
    });
    // In turns, so that a machine that changes its speed changes it for both.
    const sides: [Side, Side] = [empty("in process"), empty("over HTTP")];
    for (let round = 0; round < 2; round++) {
      await measure(sides[0], local, [], steps, join(folder, `local-${round}`));
      const overrides = ["rllm/backend=tinker", `tinker_base_url=${serve.url}`];
      await measure(sides[1], remote, overrides, steps, join(folder, `remote-${round}`));
    }
    await remote.close();
    for (const side of sides) print(side);
    const ratio = median(sides[1].step) / median(sides[0].step);
    console.log(
      `over HTTP a step takes ${ratio.toFixed(3)} times as long: ${(100 * (ratio - 1)).toFixed(1)}% overhead`,
    );
    return ratio < most;
  } finally {
    await Promise.all([serve.stop(), local.close()]);
  }
}

const median = (values: readonly number[]) => percentile(values, 50);

const empty = (name: string): Side => ({ name, step: [], sampling: [], training: [], rewards: [] });

/** The first step warms up and is not counted. */
async function measure(side: Side, engine: Engine, overrides: string[], steps: number, folder: string): Promise<void> {
  const trainer = [`rllm.trainer.total_batches=${steps + 1}`, "rllm.trainer.save_freq=0", "rllm.trainer.logger=[]"];
  // The backends differ in what they train unless it is said.
  const same = ["model.train_attn=true", "model.train_mlp=true", "model.train_unembed=false", "model.lora_rank=32"];
  const { history } = await train(experiment, {
    overrides: [...overrides, ...same, ...trainer, `rllm.trainer.run_dir=${folder}`],
    engine: { engine, chat: loadChat(engine.model.directory) },
  });
  for (const { metrics } of history.slice(1)) {
    side.step.push(metrics["time/step"]!);
    side.sampling.push(metrics["time/rollout"]!);
    side.training.push(metrics["time/update"]!);
  }
  side.rewards.push(...history.map(({ metrics }) => metrics["reward/mean"]!));
}

function print({ name, step, sampling, training, rewards }: Side): void {
  const shown = [step, sampling, training].map((values) => median(values).toFixed(2));
  console.log(
    `${name}: ${shown[0]} s a step (sampling ${shown[1]}, training ${shown[2]}), reward ${mean(rewards).toFixed(4)}; ` +
      `steps ${step.map((value) => value.toFixed(2)).join(" ")}`,
  );
}
