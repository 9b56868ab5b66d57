/**
 * A step of Hone on verl's workers beside the time that verl's own calls take in it (forward, forward-backward, optimizer
 * step, in the slowest worker): two FSDP2 ranks on the CPU.
 *
 *   npm run bench -- verl [--steps 5] [--model FOLDER]
 *
 * The rest is Hone's: the batch on its way to the workers, the outputs and their gradient on their way to the loss and back.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
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
  const steps: { whole: number; verl: number }[] = [];
  for (let step = 0; step <= Number(flags.steps); step++) {
    const before = await inVerl();
    const begin = performance.now();
    const loss = linearLoss(sequences, madeUpWeights(numTrained(sequences), step));
    await learner.forwardBackward(sequences, loss);
    await learner.optimStep(ordinary);
    const whole = (performance.now() - begin) / 1000;
    // The first step warms up.
    if (step > 0) steps.push({ whole, verl: (await inVerl()) - before });
  }
  await engine.close();
  const [whole, verl] = [mean(steps.map((step) => step.whole)), mean(steps.map((step) => step.verl))];
  const size = `${batch.sequences} sequences of ${batch.prompt} + ${batch.reply} tokens, ${engine.model.parameters} parameters`;
  console.log(`${size}, ${steps.length} steps`);
  console.log(`a step takes ${whole.toFixed(3)} s, verl's own calls ${verl.toFixed(3)} s`);
  console.log(`Hone adds ${((100 * (whole - verl)) / verl).toFixed(1)}%`);
} finally {
  rmSync(root, { recursive: true, force: true });
}
