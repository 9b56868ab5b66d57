/**
 * A step of Hone on verl's workers beside the time that verl's own calls take in it (forward, forward-backward, optimizer
 * step, in the slowest worker): two FSDP2 ranks on the CPU.
 *
 *   npm run bench -- verl [--steps 5] [--model FOLDER] [--skip-peer]
 *
 * The rest is Hone's: the batch on its way to the workers, the outputs and their gradient on their way to the loss and back.
 * The same loss runs as one of Hone's, and as one of verl's own, which needs one pass over the batch instead of two. The last
 * side does what verl's trainer (main_ppo) does for an update: a forward pass, then its own loss. Both are compared.
 */
import { spawn } from "node:child_process";
import { createWriteStream, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import {
  linearLoss,
  madeUpTokens,
  madeUpWeights,
  numTrained,
  ordinary,
  trainedAfter,
} from "../../conformance/tools.ts";
import type { Loss } from "../../src/algorithms/types.ts";
import type { Engine } from "../../src/backends/engine.ts";
import { openVerlEngine } from "../../src/backends/verl/engine.ts";
import { verlEngineOptions } from "../../src/backends/verl/options.ts";
import { makeTinyModel } from "../../src/base/python.fixture.ts";
import { prepareEnvironment, verlEnvironment } from "../../src/base/python.ts";
import { composeConfig } from "../../src/config/compose.ts";

const batch = { sequences: 64, prompt: 64, reply: 64 };
/** main_ppo samples this many replies for each prompt. */
const perPrompt = 4;

const { values: flags } = parseArgs({
  options: {
    steps: { type: "string", default: "5" },
    model: { type: "string" },
    "skip-peer": { type: "boolean", default: false },
  },
});
const root = mkdtempSync(join(tmpdir(), "hone-bench-verl-"));
try {
  const model = flags.model ?? (await makeTinyModel(join(root, "model"), 0, 64));
  const overrides = ["rllm/backend=verl", `model.name=${model}`, "trainer={n_gpus_per_node: 2, device: cpu}"];
  const hooks = { logFile: join(root, "driver.log"), onStatus: (text: string) => console.error(text) };
  const engine = await openVerlEngine(verlEngineOptions(composeConfig({ overrides }), 2, hooks));
  const { learner } = await engine.createPolicy({ adapter: { kind: "full" } });
  const tokens = (seed: number, length: number) => madeUpTokens(engine as Engine, seed, length);
  const sequences = Array.from({ length: batch.sequences }, (_, index) =>
    trainedAfter(tokens(index, batch.prompt), tokens(1000 + index, batch.reply)),
  );
  const weightsOf = (step: number) => madeUpWeights(numTrained(sequences), step);
  const inVerl = async () => (await engine.stats!())["seconds/verl_actor"]!;
  const ofHone = (step: number) => linearLoss(sequences, weightsOf(step));
  const ofVerl = (step: number): Loss => {
    const weights = weightsOf(step).logprobs.map((weight) => -weight);
    return { ...ofHone(step), hosted: () => ({ name: "cross_entropy", config: {}, inputs: { weights } }) };
  };
  const sides: [string, (step: number) => Promise<unknown>][] = [
    ["a loss of Hone's", (step) => learner.forwardBackward(sequences, ofHone(step))],
    ["verl's own loss", (step) => learner.forwardBackward(sequences, ofVerl(step))],
    [
      "a forward pass and verl's own loss",
      async (step) => {
        await learner.forward(sequences, { entropy: true });
        await learner.forwardBackward(sequences, ofVerl(step));
      },
    ],
  ];
  const times = sides.map(() => ({ whole: [] as number[], verl: [] as number[] }));
  for (let step = 0; step <= Number(flags.steps); step++) {
    for (const [side, [, accumulate]] of sides.entries()) {
      const before = await inVerl();
      const begin = performance.now();
      await accumulate(step);
      await learner.optimStep(ordinary);
      const whole = (performance.now() - begin) / 1000;
      // The first step warms up.
      if (step === 0) continue;
      times[side]!.whole.push(whole);
      times[side]!.verl.push((await inVerl()) - before);
    }
  }
  await engine.close();
  const peer = flags["skip-peer"] ? [] : await trainByVerl(model, Number(flags.steps));
  const size = `${batch.sequences} sequences of ${batch.prompt} + ${batch.reply} tokens, ${engine.model.parameters} parameters`;
  console.log(`${size}; the fastest of ${flags.steps} steps`);
  for (const [side, [name]] of sides.entries()) {
    const [whole, verl] = [fastest(times[side]!.whole), fastest(times[side]!.verl)];
    const added = ((100 * (whole - verl)) / verl).toFixed(1);
    console.log(`${name}: a step takes ${whole.toFixed(3)} s, verl's calls ${verl.toFixed(3)} s; Hone adds ${added}%`);
  }
  if (peer.length > 0) {
    const ratio = fastest(times.at(-1)!.whole) / fastest(peer);
    console.log(
      `main_ppo: old_log_prob and update_actor take ${fastest(peer).toFixed(3)} s; Hone's ratio ${ratio.toFixed(3)}`,
    );
  }
} finally {
  rmSync(root, { recursive: true, force: true });
}

/** Other programs slow down single steps. */
function fastest(seconds: readonly number[]): number {
  return Math.min(...seconds);
}

/** Seconds of old_log_prob and update_actor of each step of verl's own trainer, without the first. */
async function trainByVerl(model: string, steps: number): Promise<number[]> {
  const script = fileURLToPath(new URL("peer_main_ppo.py", import.meta.url));
  const sizes = [
    `data.train_batch_size=${batch.sequences / perPrompt}`,
    `actor_rollout_ref.actor.ppo_mini_batch_size=${batch.sequences / perPrompt}`,
    `actor_rollout_ref.rollout.n=${perPrompt}`,
    `data.max_prompt_length=${batch.prompt}`,
    `data.max_response_length=${batch.reply}`,
    `trainer.total_training_steps=${steps + 1}`,
  ];
  const python = await prepareEnvironment(verlEnvironment());
  const log = join(root, "main_ppo.log");
  const child = spawn(python, [script, root, model, ...sizes], { stdio: ["ignore", "pipe", "pipe"] });
  child.stderr.pipe(createWriteStream(log));
  const seconds: number[] = [];
  for await (const line of createInterface({ input: child.stdout })) {
    const [forward, update] = ["old_log_prob", "update_actor"].map((name) =>
      Number(new RegExp(`timing_s/${name}:([\\d.e-]+)`).exec(line)?.[1]),
    );
    if (forward && update) seconds.push(forward + update);
  }
  if (seconds.length === 0) throw new Error(`main_ppo printed no times:\n${readFileSync(log, "utf8").slice(-4000)}`);
  return seconds.slice(1);
}
