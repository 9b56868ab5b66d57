/**
 * A step of Hone on verl's workers beside the time that verl's own calls take in it (forward, forward-backward, optimizer
 * step, in the slowest worker): two FSDP2 ranks on the CPU.
 *
 *   npm run bench -- verl [--steps 5] [--model FOLDER]
 *
 * The rest is Hone's: the batch on its way to the workers, the outputs and their gradient on their way to the loss and back.
 * The same loss runs as one of Hone's, and as one of verl's own, which needs one pass over the batch instead of two.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import type { Loss } from "../../src/algorithms/types.ts";
import {
  linearLoss,
  madeUpTokens,
  madeUpWeights,
  numTrained,
  ordinary,
  trainedAfter,
} from "../../src/backends/conformance/tools.ts";
import type { Engine } from "../../src/backends/engine.ts";
import { openVerlEngine } from "../../src/backends/verl/engine.ts";
import { verlEngineOptions } from "../../src/backends/verl/options.ts";
import { composeConfig, prepareComposition } from "../../src/config/compose.ts";
import { makeTinyModel } from "../../src/python/run-python.fixture.ts";
import { mean } from "../../src/statistics.ts";

const batch = { sequences: 64, prompt: 64, reply: 64 };

const { values: flags } = parseArgs({
  options: { steps: { type: "string", default: "5" }, model: { type: "string" } },
});
const root = mkdtempSync(join(tmpdir(), "hone-bench-verl-"));
try {
  const model = flags.model ?? (await makeTinyModel(join(root, "model"), 0, 64));
  const overrides = ["rllm/backend=verl", `model.name=${model}`, "trainer={n_gpus_per_node: 2, device: cpu}"];
  await prepareComposition({ overrides });
  const hooks = { logFile: join(root, "driver.log"), onStatus: (text: string) => console.error(text) };
  const engine = await openVerlEngine(verlEngineOptions(composeConfig({ overrides }), 2, hooks));
  const { learner } = await engine.createPolicy({ adapter: { kind: "full" } });
  const tokens = (seed: number, length: number) => madeUpTokens(engine as Engine, seed, length);
  const sequences = Array.from({ length: batch.sequences }, (_, index) =>
    trainedAfter(tokens(index, batch.prompt), tokens(1000 + index, batch.reply)),
  );
  const inVerl = async () => (await engine.stats!())["seconds/verl_actor"]!;
  const sides: [string, (weights: Float32Array) => Loss][] = [
    ["a loss of Hone's", (logprobs) => linearLoss(sequences, { logprobs })],
    [
      "verl's own loss",
      (logprobs) => {
        const inputs = { weights: logprobs.map((weight) => -weight) };
        return {
          ...linearLoss(sequences, { logprobs }),
          hosted: () => ({ name: "cross_entropy", config: {}, inputs }),
        };
      },
    ],
  ];
  const times = sides.map(() => ({ whole: [] as number[], verl: [] as number[] }));
  for (let step = 0; step <= Number(flags.steps); step++) {
    for (const [side, [, lossOf]] of sides.entries()) {
      const before = await inVerl();
      const begin = performance.now();
      await learner.forwardBackward(sequences, lossOf(madeUpWeights(numTrained(sequences), step).logprobs));
      await learner.optimStep(ordinary);
      const whole = (performance.now() - begin) / 1000;
      // The first step warms up.
      if (step === 0) continue;
      times[side]!.whole.push(whole);
      times[side]!.verl.push((await inVerl()) - before);
    }
  }
  await engine.close();
  const size = `${batch.sequences} sequences of ${batch.prompt} + ${batch.reply} tokens, ${engine.model.parameters} parameters`;
  console.log(`${size}, ${flags.steps} steps`);
  for (const [side, [name]] of sides.entries()) {
    const [whole, verl] = [mean(times[side]!.whole), mean(times[side]!.verl)];
    const added = ((100 * (whole - verl)) / verl).toFixed(1);
    console.log(`${name}: a step takes ${whole.toFixed(3)} s, verl's calls ${verl.toFixed(3)} s; Hone adds ${added}%`);
  }
} finally {
  rmSync(root, { recursive: true, force: true });
}
