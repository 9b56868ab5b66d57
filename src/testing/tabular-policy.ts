/** A bigram table that learns: exact outputs and gradients, AdamW, published weights, state as JSON. */
import { existsSync } from "node:fs";
import { mkdir, readFile, rename, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { z } from "zod";
import type { AdamParams, Policy } from "../backends/engine.ts";
import { UserError } from "../errors.ts";
import { pullBack, type Table, tableOutputs } from "./bigram-table.ts";
import type { CharacterChat } from "./character-chat.ts";
import { tabularSample } from "./tabular-sample.ts";

const stateSchema = z.strictObject({
  vocabularySize: z.number(),
  weights: z.array(z.number()),
  steps: z.number(),
  first: z.array(z.number()),
  second: z.array(z.number()),
});

/** @param trained false for a reference: it samples and forwards, and refuses to learn */
export function tabularPolicy(base: Table, chat: CharacterChat, trained: boolean): Policy {
  const size = chat.vocabularySize;
  const weights = base.slice();
  const gradient: Table = new Float64Array(weights.length);
  const first: Table = new Float64Array(weights.length);
  const second: Table = new Float64Array(weights.length);
  let steps = 0;
  let published = weights.slice();
  let version = 0;

  const requireTrained = () => {
    if (!trained) throw new UserError("this policy is the base model as it is (adapter none) and cannot be trained");
  };

  /** AdamW (Loshchilov and Hutter 2019), with bias correction as in PyTorch. */
  function adamStep({ learningRate, beta1, beta2, eps, weightDecay }: AdamParams, scale: number): void {
    steps++;
    const correction1 = 1 - beta1 ** steps;
    const correction2 = Math.sqrt(1 - beta2 ** steps);
    for (let index = 0; index < weights.length; index++) {
      const slope = gradient[index]! * scale;
      first[index] = beta1 * first[index]! + (1 - beta1) * slope;
      second[index] = beta2 * second[index]! + (1 - beta2) * slope * slope;
      const decayed = weights[index]! * (1 - learningRate * weightDecay);
      weights[index] =
        decayed - (learningRate * first[index]!) / correction1 / (Math.sqrt(second[index]!) / correction2 + eps);
    }
  }

  return {
    get version() {
      return version;
    },
    sample: (requests, options) => tabularSample(published, chat, version, requests, options),
    async forward(sequences, want) {
      const { entropy, ...outputs } = tableOutputs(weights, size, sequences);
      return want.entropy ? { ...outputs, entropy } : outputs;
    },
    async forwardBackward(sequences, loss) {
      requireTrained();
      const { entropy, ...rest } = tableOutputs(weights, size, sequences);
      const outputs = loss.outputs.entropy ? { ...rest, entropy } : rest;
      const value = loss.evaluate(outputs, Int32Array.from(sequences.keys()));
      pullBack(weights, size, sequences, value.gradient, gradient);
      return { loss: value.loss, metrics: value.metrics, outputs };
    },
    async optimStep(adam) {
      requireTrained();
      const gradNorm = Math.sqrt(gradient.reduce((sum, slope) => sum + slope * slope, 0));
      const applied = Number.isFinite(gradNorm);
      const clipped = adam.maxGradNorm > 0 && gradNorm > adam.maxGradNorm;
      if (applied) adamStep(adam, clipped ? adam.maxGradNorm / gradNorm : 1);
      gradient.fill(0);
      return { gradNorm, applied };
    },
    async publish() {
      published = weights.slice();
      return ++version;
    },
    async zeroGrad() {
      gradient.fill(0);
    },
    async saveState(dir) {
      if (existsSync(dir)) throw new UserError(`${dir} exists already`);
      const partial = `${dir}.partial-${process.pid}`;
      await mkdir(partial, { recursive: true });
      const arrays = { weights: [...weights], first: [...first], second: [...second] };
      await writeFile(join(partial, "state.json"), JSON.stringify({ vocabularySize: size, steps, ...arrays }));
      await rename(partial, dir);
    },
    async loadState(dir, { optimizer }) {
      const file = join(dir, "state.json");
      if (!existsSync(file)) throw new UserError(`no state.json in ${dir}`);
      const parsed = stateSchema.safeParse(JSON.parse(await readFile(file, "utf8")));
      if (!parsed.success)
        throw new UserError(`${file} is not a tabular policy's state: ${z.prettifyError(parsed.error)}`);
      const state = parsed.data;
      if (state.vocabularySize !== size) {
        throw new UserError(`${file} is of a vocabulary of ${state.vocabularySize}, this policy's has ${size}`);
      }
      weights.set(state.weights);
      gradient.fill(0);
      if (!optimizer) return;
      steps = state.steps;
      first.set(state.first);
      second.set(state.second);
    },
    async export() {
      throw new UserError("the tabular engine has no exports; saveState writes its weights as JSON");
    },
    async close() {},
  };
}
