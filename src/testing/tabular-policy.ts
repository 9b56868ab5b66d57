/** A bigram table that learns: exact outputs and gradients, AdamW, published weights. */
import { checkLossValue } from "../backends/check-loss-value.ts";
import type { AdapterSpec, Learner, Policy, Published, Sampler } from "../backends/engine.ts";
import { requireFitting } from "../backends/learner-spec.ts";
import { requireOwn } from "../backends/published.ts";
import { UserError } from "../errors.ts";
import { clippedAdamStep, freshAdam } from "./adam.ts";
import { pullBack, type Table, tableDraws, tableMostLikely, tableOutputs } from "./bigram-table.ts";
import type { CharacterChat } from "./character-chat.ts";
import { tabularAdapter } from "./tabular-adapter.ts";
import { tabularSample } from "./tabular-sample.ts";
import { loadTabularState, saveTabularState } from "./tabular-state.ts";

/** Distinguishes learners. */
let count = 0;

export function tabularPolicy(base: Table, chat: CharacterChat, spec: AdapterSpec): Policy {
  const size = chat.vocabularySize;
  const adapter = tabularAdapter(base, size, spec);
  let parameters: Float64Array = adapter.initial.slice();
  let adam = freshAdam(parameters.length);
  let table = adapter.toTable(parameters);
  const gradient: Table = new Float64Array(size * size);
  /** Counts the learner's versions; `sampled` is what the sampler has loaded. */
  let version = 0;
  let published = table.slice();
  let sampled = { version, table: published };
  const id = `tabular ${++count}`;

  function publish(as: number): Published {
    version = as;
    published = table.slice();
    return { kind: "engine", version, id };
  }

  const requireTrained = () => {
    if (spec.kind === "none") throw new UserError("this policy is the base model (adapter none): it cannot be trained");
  };

  const sampler: Sampler = {
    get version() {
      return sampled.version;
    },
    logprobs: "raw",
    sample: (requests, options) => tabularSample(sampled.table, chat, sampled.version, requests, options),
    async load(weights) {
      requireOwn(weights, id);
      sampled = { version: weights.version, table: published };
    },
    async close() {},
  };
  const learner: Learner = {
    async forward(sequences, want) {
      requireFitting({ adapter: spec }, want);
      const { entropy, ...outputs } = tableOutputs(table, size, sequences);
      return want.entropy ? { ...outputs, entropy } : outputs;
    },
    async mostLikely(sequences, count) {
      return tableMostLikely(table, size, sequences, count);
    },
    async draws(sequences, options) {
      return tableDraws(table, size, sequences, options);
    },
    async forwardBackward(sequences, loss) {
      requireTrained();
      requireFitting({ adapter: spec }, loss.outputs);
      const { entropy, ...rest } = tableOutputs(table, size, sequences);
      const outputs = loss.outputs.entropy ? { ...rest, entropy } : rest;
      const value = loss.evaluate(outputs, Int32Array.from(sequences.keys()));
      checkLossValue(loss.name, value, outputs);
      pullBack(table, size, sequences, value.gradient, gradient);
      return { loss: value.loss, metrics: value.metrics, outputs };
    },
    async optimStep(params) {
      requireTrained();
      const slopes = adapter.pullBack(parameters, gradient);
      gradient.fill(0);
      const taken = clippedAdamStep(parameters, slopes, adam, params);
      if (taken.applied) table = adapter.toTable(parameters);
      return taken;
    },
    publish: async () => publish(version + 1),
    async zeroGrad() {
      gradient.fill(0);
    },
    saveState: (dir, { optimizer } = { optimizer: true }) =>
      saveTabularState(dir, { version, parameters, ...(optimizer ? adam : freshAdam(parameters.length)) }),
    async loadState(dir, { optimizer }) {
      const { parameters: saved, version: savedVersion, ...state } = await loadTabularState(dir, parameters.length);
      parameters = saved;
      adam = optimizer ? state : freshAdam(parameters.length);
      table = adapter.toTable(parameters);
      gradient.fill(0);
      return publish(savedVersion);
    },
    async export() {
      throw new UserError("the tabular engine has no exports; saveState writes its weights as JSON");
    },
    async close() {},
  };
  return { sampler, learner };
}
