/** The tabular engine's critic: one value for each previous token, with parameters and an optimizer of its own. */

import { checkLossValue } from "../backends/check-loss-value.ts";
import type { Learner } from "../backends/engine.ts";
import { requireFitting } from "../backends/learner-spec.ts";
import { UserError } from "../errors.ts";
import type { Sequence, TokenOutputs } from "../trajectories/types.ts";
import { clippedAdamStep, freshAdam } from "./adam.ts";
import { eachTrained, outputOffsets } from "./bigram-table.ts";
import { loadTabularState, saveTabularState } from "./tabular-state.ts";

/** @param size the vocabulary's */
export function tabularCritic(size: number): Learner {
  const spec = { adapter: { kind: "full" }, head: "value" } as const;
  let parameters = new Float64Array(size);
  let adam = freshAdam(size);
  const gradient = new Float64Array(size);
  let version = 0;

  function valuesOf(sequences: readonly Sequence[]): TokenOutputs & { values: Float32Array } {
    const offsets = outputOffsets(sequences);
    const values = new Float32Array(offsets.at(-1)!);
    eachTrained(sequences, (output, previous) => {
      values[output] = parameters[previous]!;
    });
    return { offsets, logprobs: new Float32Array(0), values };
  }

  return {
    async forward(sequences, outputs) {
      requireFitting(spec, outputs);
      return valuesOf(sequences);
    },
    async forwardBackward(sequences, loss) {
      requireFitting(spec, loss.outputs);
      const outputs = valuesOf(sequences);
      const value = loss.evaluate(outputs, Int32Array.from(sequences.keys()));
      checkLossValue(loss.name, value, outputs);
      eachTrained(sequences, (output, previous) => {
        gradient[previous]! += value.gradient.values?.[output] ?? 0;
      });
      return { loss: value.loss, metrics: value.metrics, outputs };
    },
    async optimStep(params) {
      const slopes = gradient.slice();
      gradient.fill(0);
      return clippedAdamStep(parameters, slopes, adam, params);
    },
    publish: async () => ({ kind: "engine", version: ++version, id: "critic" }),
    async zeroGrad() {
      gradient.fill(0);
    },
    saveState: (dir, { optimizer } = { optimizer: true }) =>
      saveTabularState(dir, { version, parameters, ...(optimizer ? adam : freshAdam(size)) }),
    async loadState(dir, { optimizer }) {
      const { parameters: saved, version: savedVersion, ...state } = await loadTabularState(dir, size);
      parameters = saved as Float64Array<ArrayBuffer>;
      adam = optimizer ? state : freshAdam(size);
      version = savedVersion;
      gradient.fill(0);
      return { kind: "engine", version, id: "critic" };
    },
    async export() {
      throw new UserError("a policy with a value head cannot be exported");
    },
    async close() {},
  };
}
