/**
 * Seconds per step and memory per process of one model trained by one process, and by two with each sharding. All weights are
 * trained, in float32.
 *
 *   npm run bench -- sharded [--model ./my-model] [--sequences 8] [--tokens 128] [--steps 3] [--only zero2,fsdp]
 *
 * Prints the fastest step, and the resident memory of the largest process between backward and the next step, and at its peak,
 * which includes loading.
 */
import { parseArgs } from "node:util";
import type { Loss } from "../../src/algorithms/types.ts";
import { openLocalEngine } from "../../src/backends/local/engine.ts";
import type { LocalEngineOptions } from "../../src/backends/local/options.ts";
import { formatBytes } from "../../src/base/files.ts";
import { deriveSeed, uniforms } from "../../src/base/values.ts";

const { values: flags } = parseArgs({
  options: {
    model: { type: "string", default: "smollm2-135m-instruct" },
    sequences: { type: "string", default: "8" },
    tokens: { type: "string", default: "128" },
    steps: { type: "string", default: "3" },
    only: { type: "string" },
  },
});
const [sequences, tokens, steps] = [flags.sequences, flags.tokens, flags.steps].map(Number) as [number, number, number];

const shardings = ["fsdp", "zero1", "zero2", "zero3"] as const;
const settings: readonly [string, Partial<LocalEngineOptions>][] = [
  ["one process, 2 threads", { threads: 2 }],
  ["one process, 1 thread", { threads: 1 }],
  ...shardings.map((sharding): [string, Partial<LocalEngineOptions>] => [
    `2 processes, ${sharding}`,
    { threads: 1, processes: 2, sharding },
  ]),
];

const random = uniforms(deriveSeed("sharded"));
const batch = Array.from({ length: sequences }, () => ({
  tokens: Int32Array.from({ length: tokens }, () => 3 + Math.floor(random() * 200)),
  trained: new Uint8Array(tokens - 1).fill(1),
}));

/** The mean log-probability. */
const loss: Loss = {
  name: "likelihood",
  outputs: {},
  evaluate: ({ logprobs }) => ({
    loss: 0,
    gradient: { logprobs: new Float32Array(logprobs.length).fill(-1 / (sequences * tokens)) },
    metrics: {},
  }),
};
const adam = { learningRate: 1e-5, beta1: 0.9, beta2: 0.95, eps: 1e-8, weightDecay: 0, maxGradNorm: 1 };

for (const [name, options] of settings) {
  if (flags.only !== undefined && !flags.only.split(",").some((part) => name.includes(part))) continue;
  const engine = await openLocalEngine({ model: flags.model, device: "cpu", dtype: "float32", ...options });
  try {
    const learner = await engine.createLearner({ adapter: { kind: "full" } });
    const seconds: number[] = [];
    for (let step = 0; step < steps; step++) {
      const begin = performance.now();
      await learner.forwardBackward(batch, loss);
      await learner.optimStep(adam);
      seconds.push((performance.now() - begin) / 1000);
    }
    await learner.forwardBackward(batch, loss);
    const stats = await engine.stats();
    const [now, peak] = ["rss", "peak_rss"].map((kind) => formatBytes(stats[`memory/${kind}_bytes`] ?? 0));
    console.log(`${name.padEnd(24)} ${Math.min(...seconds).toFixed(2)} s   ${now} with gradients, ${peak} peak`);
  } finally {
    await engine.close();
  }
}
