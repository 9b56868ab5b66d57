/** A whole engine without Python: a bigram model over characters, for tests of trainers, losses and rewards that learn. */
import { existsSync } from "node:fs";
import { mkdir, readFile, rename, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { setImmediate } from "node:timers/promises";
import { z } from "zod";
import type {
  AdapterSpec,
  Capabilities,
  Engine,
  Learner,
  Policy,
  Published,
  Sample,
  SampleOptions,
  SampleRequest,
  Sampler,
} from "../backends/engine.ts";
import { checkLossValue, requireCreatable, requireFitting, requireOwn } from "../backends/engine-parts.ts";
import { UserError } from "../base/errors.ts";
import { temporaryName } from "../base/files.ts";
import { uniforms } from "../base/values.ts";
import type { Sequence, TokenOutputs } from "../trajectories/types.ts";
import {
  type AdamState,
  clippedAdamStep,
  drawToken,
  eachTrained,
  freshAdam,
  logProbabilities,
  outputOffsets,
  pullBack,
  rankTokens,
  type Table,
  tableDraws,
  tableMostLikely,
  tableOutputs,
  tabularAdapter,
} from "./bigram-table.ts";
import { type CharacterChat, characterChat } from "./scripted.ts";

export interface TabularEngineOptions {
  /** The characters that the model can read and write, or a list that also has whole replies; a handful keeps the table small. */
  alphabet: Iterable<string>;
  /** The base model's logit of the token `next` after `previous`. Default 0: every token is as likely as any other. */
  logit?: (next: number, previous: number) => number;
}

const capabilities: Capabilities = {
  engine: "tabular",
  sampleLogprobs: "raw",
  adapters: ["lora", "full", "none"],
  // The engine's only base model.
  loraTargets: ["attn", "mlp", "unembed"],
  outputs: ["logprobs", "entropy", "values", "concentration", "targets", "most_likely", "draws"],
  sampling: [
    ...(["top_p", "top_k", "min_p", "stop_ids", "stop_strings", "seed"] as const),
    ...(["prompt_logprobs", "top_logprobs", "tempered_logprobs"] as const),
    ...(["abort", "tokens_streamed"] as const),
  ],
  multiplePolicies: true,
  otherModels: false,
  frozenSampler: { lora: true, full: true },
  exports: [],
  images: false,
};

/**
 * The model knows the previous token only, so it can learn which characters to answer with, not to read a prompt.
 * Log-probabilities, entropies and gradients are exact in float64.
 *
 * @example
 * const engine = tabularEngine({ alphabet: "abc" });
 * const policy = await engine.createPolicy({ adapter: { kind: "full" } });
 */
export function tabularEngine({
  alphabet,
  logit = () => 0,
}: TabularEngineOptions): Engine & { readonly chat: CharacterChat } {
  const chat = characterChat(alphabet);
  const size = chat.vocabularySize;
  const base = Float64Array.from({ length: size * size }, (_, index) => logit(index % size, Math.floor(index / size)));
  return {
    chat,
    capabilities,
    versions: {},
    model: {
      name: "tabular",
      directory: "",
      architecture: "bigram",
      parameters: size * size,
      vocabularySize: size,
      maxLength: Number.MAX_SAFE_INTEGER,
      eosTokenIds: [chat.eosId],
      dtype: "float64",
      device: "cpu",
      attention: "packed",
    },
    createPolicy: async ({ adapter }) => tabularPolicy(base, chat, adapter),
    async createLearner(spec) {
      const { adapter, head } = spec;
      requireCreatable(capabilities, spec);
      if (head === undefined) return tabularPolicy(base, chat, adapter).learner;
      if (adapter.kind !== "none") return tabularCritic(size);
      throw new UserError("the base model cannot have a value head, because it is not trained");
    },
    stats: async () => ({}),
    waitingFor: () => [],
    close: async () => {},
  };
}

// A bigram table that learns: exact outputs and gradients, AdamW, published weights.

/** Distinguishes learners. */
let count = 0;

function tabularPolicy(base: Table, chat: CharacterChat, spec: AdapterSpec): Policy {
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

// The tabular engine's critic: one value for each previous token, with parameters and an optimizer of its own.

/** @param size the vocabulary's */
function tabularCritic(size: number): Learner {
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

// Sampling from a bigram table, all sequences of a call in step, one token each.

interface Row {
  index: number;
  request: SampleRequest;
  last: number;
  tokens: number[];
  logprobs: number[];
  top: { tokens: Int32Array; logprobs: Float32Array }[];
  uniform: () => number;
}

/** @param table the loaded weights, which must not change while this samples */
async function* tabularSample(
  table: Table,
  chat: CharacterChat,
  policyVersion: number,
  requests: readonly SampleRequest[],
  { signal, onToken }: SampleOptions = {},
): AsyncGenerator<Sample, void, undefined> {
  const size = chat.vocabularySize;
  let live: Row[] = requests.map((request, index) => ({
    index,
    request,
    last: request.prompt.at(-1)!,
    tokens: [],
    logprobs: [],
    top: [],
    uniform: uniforms(request.params.seed),
  }));
  while (live.length > 0) {
    // An abort can arrive between two tokens.
    await setImmediate();
    const going: Row[] = [];
    for (const row of live) {
      const aborted = signal?.aborted || row.request.signal?.aborted;
      if (!aborted) step(row);
      const stopReason = aborted ? "aborted" : whyStopped(row, chat);
      if (stopReason) yield toSample(row, stopReason);
      else going.push(row);
    }
    live = going;
  }

  function step(row: Row): void {
    const logs = logProbabilities(table, size, row.last);
    const token = drawToken(logs, row.request.params, row.uniform());
    row.last = token;
    row.tokens.push(token);
    const reported = row.request.temperedLogprobs ? tempered(logs, row.request.params.temperature) : logs;
    const logprob = reported[token]!;
    row.logprobs.push(logprob);
    if (row.request.topLogprobs) row.top.push(mostLikely(reported, row.request.topLogprobs));
    onToken?.(row.index, token, Math.fround(logprob));
  }

  function toSample({ index, request, tokens, logprobs, top }: Row, stopReason: Sample["stopReason"]): Sample {
    const sample: Sample = {
      request: index,
      tokens: Int32Array.from(tokens),
      logprobs: Float32Array.from(logprobs),
      stopReason,
      policyVersion,
    };
    if (request.promptLogprobs) sample.promptLogprobs = promptLogprobs(table, size, request.prompt);
    if (request.topLogprobs) sample.topLogprobs = top;
    return sample;
  }
}

function whyStopped({ request: { params }, tokens, last }: Row, chat: CharacterChat): "stop" | "length" | undefined {
  const ended = params.stopIds.includes(last) || (last === chat.eosId && !params.ignoreEos);
  if (ended) return "stop";
  if (params.stopStrings.length > 0) {
    const text = chat.decode(tokens);
    if (params.stopStrings.some((stop) => text.includes(stop))) return "stop";
  }
  return tokens.length >= params.maxTokens ? "length" : undefined;
}

/** Log-probabilities at a temperature; greedy counts as 1. */
function tempered(logs: Float64Array, temperature: number): Float64Array {
  const scaled = temperature === 0 ? logs : logs.map((log) => log / temperature);
  return logProbabilities(scaled, scaled.length, 0);
}

function mostLikely(logs: Float64Array, count: number): { tokens: Int32Array; logprobs: Float32Array } {
  const ranked = rankTokens(logs).slice(0, count);
  return {
    tokens: Int32Array.from(ranked, ({ token }) => token),
    logprobs: Float32Array.from(ranked, ({ log }) => log),
  };
}

const promptLogprobs = (table: Table, size: number, prompt: Int32Array) =>
  Float32Array.from(prompt, (token, position) =>
    position === 0 ? Number.NaN : logProbabilities(table, size, prompt[position - 1]!)[token]!,
  );

// A tabular policy on disk: one JSON file in a folder that is either complete or absent.

const numbers = z.array(z.number()).transform((list) => Float64Array.from(list));
const schema = z.strictObject({
  version: z.int(),
  parameters: numbers,
  steps: z.int(),
  first: numbers,
  second: numbers,
});

interface TabularState extends AdamState {
  /** Version of the published weights. */
  version: number;
  parameters: Float64Array;
}

/** @throws UserError when `dir` exists */
async function saveTabularState(dir: string, state: TabularState): Promise<void> {
  if (existsSync(dir)) throw new UserError(`${dir} already exists`);
  const partial = temporaryName(dir);
  await mkdir(partial, { recursive: true });
  const plain = (_key: string, value: unknown) => (value instanceof Float64Array ? [...value] : value);
  await writeFile(join(partial, "state.json"), JSON.stringify(state, plain));
  await rename(partial, dir);
}

/** @throws UserError when there is no state in `dir`, or one of another number of parameters */
async function loadTabularState(dir: string, count: number): Promise<TabularState> {
  const file = join(dir, "state.json");
  if (!existsSync(file)) throw new UserError(`no state.json in ${dir}`);
  const parsed = schema.safeParse(JSON.parse(await readFile(file, "utf8")));
  if (!parsed.success) throw new UserError(`${file} is not a tabular policy's state: ${z.prettifyError(parsed.error)}`);
  const { length } = parsed.data.parameters;
  if (length !== count) throw new UserError(`${file} contains ${length} parameters, but this policy has ${count}`);
  return parsed.data;
}
