/** Requests to sample: reads them as an engine takes them, and answers with sequences and what was asked about the prompt. */
import { createHash, randomInt } from "node:crypto";
import { z } from "zod";
import { type Learner, leastTemperature, type Policy, type Sample, type SampleRequest } from "../../backends/engine.ts";
import { probability, seed, temperatureFrom, wholeAtLeast, wholeFrom } from "../../backends/tinker/handshake.ts";
import { emptyLogprob, encodeSampleResponse, jsonChunk, type TopLogprobs } from "../../backends/tinker/messages.ts";
import { encodeSparse, encodeTensor, type TensorMessage } from "../../backends/tinker/tensors.ts";
import { RunError, UserError } from "../../base/errors.ts";
import type { Sequence } from "../../trajectories/types.ts";
import type { BaseModel } from "./base-models.ts";
import type { FutureResult } from "./context.ts";
import { readBody } from "./http.ts";
import { type ImageBase, type ModelInput, readInput, requireKnown } from "./model-input.ts";

const count = wholeAtLeast(0);
const tensor = z.looseObject({
  data: z.array(z.number()),
  dtype: z.string(),
  shape: z.array(count).nullish(),
  sparse_crow_indices: z.array(count).nullish(),
  sparse_col_indices: z.array(count).nullish(),
});

/** Unknown fields are refused: ignoring one could change what the answer means. */
const schema = z.strictObject({
  type: z.literal("sample").optional(),
  sampling_session_id: z.string(),
  // Any integer: larger ones than 2^53 are read from the text.
  seq_id: z.number().multipleOf(1),
  num_samples: wholeFrom(1, 1024).default(1),
  prompt: z.strictObject({ chunks: z.array(jsonChunk) }),
  sampling_params: z
    .strictObject({
      max_tokens: wholeAtLeast(1).nullish(),
      seed: seed.nullish(),
      stop: z
        .union(
          [z.string(), z.array(z.string()), z.array(count)],
          "must be a text, a list of texts, or a list of tokens",
        )
        .nullish(),
      temperature: temperatureFrom(leastTemperature).default(1),
      top_k: wholeAtLeast(-1).default(-1),
      top_p: probability.default(1),
      // With `ignoreEos`: stop at what `stop` names and not at the model's own end.
      ignore_eos: z.boolean().default(false),
    })
    .prefault({}),
  prompt_logprobs: z.boolean().nullish(),
  prompt_logprobs_last_n: wholeAtLeast(1).nullish(),
  topk_prompt_logprobs: count.default(0),
  topk_sample_logprobs: count.default(0),
  target_prompt_logprobs: tensor.nullish(),
  prompt_alt_tokens_k: count.default(0),
  record_stability_info: z.boolean().nullish(),
  // With `exactLogprobs`: log-probabilities of samples are those at temperature 1.
  raw_logprobs: z.boolean().default(false),
  base_model: z.string().nullish(),
  model_path: z.string().nullish(),
});

/** The most tokens that are drawn for one prompt: about 50 MB in the answer. */
const maxDraws = 1 << 22;

interface SampleCall {
  /** One for each sequence; all of the same prompt. */
  requests: SampleRequest[];
  input: ModelInput;
  /** How many prompt tokens, from the end, get log-probabilities; null: none. */
  promptLogprobs: number | null;
  /** The number of most likely tokens at each such place. */
  topPrompt: number;
  /** The number of most likely tokens at each sampled place. */
  topSample: number;
  targets: TargetCells | null;
  /** How many tokens are drawn at each place of the prompt except the first; null: none. */
  draws: { count: number; temperature: number; seed: number } | null;
}

/** Tokens to score, ascending by place: token `tokens[i]` (-1 none) as if it stood at prompt position `places[i] + 1`. */
interface TargetCells {
  places: Int32Array;
  tokens: Int32Array;
  shape: number[];
  /** As the request had it; the answer has the same. */
  sparse?: { rows: number[]; columns: number[] };
}

/** @throws UserError that says what is wrong with the request */
export async function readSampleCall(body: unknown, base: ImageBase, signal?: AbortSignal): Promise<SampleCall> {
  const { model, capabilities } = base.engine;
  const request = readBody(schema, body);
  const { sampling_params: params, topk_sample_logprobs: topSample, topk_prompt_logprobs: topPrompt } = request;
  const input = await readInput(request.prompt.chunks, base, signal);
  const { tokens: prompt, media } = input;
  const room = model.maxLength - prompt.length;
  refuse(prompt.length === 0, "the prompt has no tokens");
  const maxTokens = params.max_tokens ?? Math.min(room, 2 ** 31 - 1);
  refuse(
    maxTokens > room || room < 1,
    `a prompt of ${prompt.length} tokens and max_tokens ${Math.max(1, maxTokens)}: the model's limit is ${model.maxLength} together`,
  );
  const drawn = request.prompt_alt_tokens_k;
  const { engine, outputs } = capabilities;
  refuse(drawn > 0 && !outputs.includes("draws"), `prompt_alt_tokens_k is not supported by the engine "${engine}"`);
  refuse(
    drawn * prompt.length > maxDraws,
    `prompt_alt_tokens_k is ${drawn} for a prompt of ${prompt.length} tokens: their product is at most ${maxDraws}`,
  );
  refuse(
    request.record_stability_info === true,
    "record_stability_info is only for the loss stable_reinforce, which this server does not support",
  );
  for (const [name, value] of Object.entries({ topk_prompt_logprobs: topPrompt, topk_sample_logprobs: topSample })) {
    refuse(value > model.vocabularySize, `${name} is ${value}, but the vocabulary has ${model.vocabularySize} tokens`);
  }
  refuse(
    (topPrompt > 0 || Boolean(request.target_prompt_logprobs)) && !outputs.includes("targets"),
    "this engine scores only the prompt's own tokens",
  );
  const lastN = request.prompt_logprobs_last_n ?? null;
  if (lastN !== null && (!request.prompt_logprobs || lastN > prompt.length - 1)) {
    const why = request.prompt_logprobs ? `the prompt has ${prompt.length} tokens` : "prompt_logprobs is off";
    throw new UserError(`prompt_logprobs_last_n is ${lastN}, but ${why}`);
  }
  const own = params.seed ?? randomInt(2 ** 47);
  const ends = stops(params.stop ?? null, params.ignore_eos);
  requireKnown(ends.stopIds, model, "sampling_params.stop");
  const shared = {
    maxTokens,
    temperature: params.temperature,
    topK: params.top_k === 0 ? -1 : params.top_k,
    topP: params.top_p,
    minP: 0,
    ...ends,
  };
  const requests = Array.from(
    { length: request.num_samples },
    (_, index): SampleRequest => ({
      prompt,
      ...(media ? { media } : {}),
      params: { ...shared, seed: seedOf(own, index) },
      temperedLogprobs: !request.raw_logprobs,
      promptLogprobs: request.prompt_logprobs === true && index === 0,
      topLogprobs: topSample,
    }),
  );
  const targets = request.target_prompt_logprobs;
  return {
    requests,
    input,
    promptLogprobs: request.prompt_logprobs ? (lastN ?? prompt.length - 1) : null,
    topPrompt,
    topSample,
    targets: targets ? readTargets(targets, prompt.length, model.vocabularySize) : null,
    draws: drawn > 0 ? { count: drawn, temperature: params.temperature, seed: seedOf(own, -1) } : null,
  };
}

function refuse(wrong: boolean, why: string): void {
  if (wrong) throw new UserError(why);
}

/** Absent: the model's own end tokens. An empty list: nothing ends a sequence. Anything else ends a sequence in addition to those. */
function stops(stop: string | string[] | number[] | null, ignoreEos: boolean) {
  if (stop === null) return { stopIds: [], stopStrings: [] };
  const list = typeof stop === "string" ? [stop] : stop;
  const stopStrings = list.filter((entry) => typeof entry === "string");
  if (stopStrings.includes("")) throw new UserError("stop: an empty text would end every sequence");
  const stopIds = list.filter((entry) => typeof entry === "number");
  return { stopIds, stopStrings, ignoreEos: ignoreEos || list.length === 0 };
}

/** The sequences of a request differ, and each depends only on the request's seed and its place. */
const seedOf = (seed: number, index: number): number =>
  index === 0 ? seed : createHash("sha256").update(`${seed}/${index}`).digest().readUIntLE(0, 6);

function readTargets(given: z.output<typeof tensor>, promptLength: number, vocabularySize: number): TargetCells {
  const { data, dtype, shape, sparse_crow_indices: rows, sparse_col_indices: columns } = given;
  const [length = 0, width = 0] = shape ?? [];
  if (dtype !== "int64" || shape?.length !== 2 || length !== promptLength - 1 || width < 1 || width > 255) {
    throw new UserError(
      `target_prompt_logprobs is ${dtype} of shape [${shape?.join(", ")}]; it must be int64 of shape [${promptLength - 1}, K], K at most 255`,
    );
  }
  const wrong = data.find((token) => !Number.isInteger(token) || token < -1 || token >= vocabularySize);
  if (wrong !== undefined) throw new UserError(`target_prompt_logprobs: ${wrong} is neither a token nor -1`);
  const tokens = Int32Array.from(data);
  if (!rows || !columns) {
    if (data.length !== length * width) throw new UserError("target_prompt_logprobs: the data does not fit the shape");
    return { places: tokens.map((_, index) => Math.floor(index / width)), tokens, shape };
  }
  const widths = rows.slice(1).map((end, row) => end - (rows[row] ?? 0));
  const fits = rows.length === length + 1 && rows[0] === 0 && rows.at(-1) === data.length;
  const widthsFit = widths.every((own) => own >= 0 && own <= 255);
  if (!fits || !widthsFit || columns.length !== data.length || columns.some((column) => column >= width)) {
    throw new UserError("target_prompt_logprobs: the sparse indices do not fit the shape");
  }
  const places = Int32Array.from(widths.flatMap((own, row) => new Array<number>(own).fill(row)));
  return { places, tokens, shape, sparse: { rows, columns } };
}

/**
 * @param owner the client whose turn on the engine this uses
 * @throws UserError when the signal ended it
 */
export async function sample(
  { sampler, learner }: Policy,
  { scheduler, gatherer }: Pick<BaseModel, "scheduler" | "gatherer">,
  owner: string,
  call: SampleCall,
  signal: AbortSignal,
): Promise<FutureResult & { kind: "protobuf"; sampledTokens: number }> {
  const { input, targets, draws, topPrompt, topSample, promptLogprobs } = call;
  const { length } = input.tokens;
  const firstReported = length - (promptLogprobs ?? length - 1);
  const scores = <T>(job: () => Promise<T>) => scheduler.train(`scores of ${owner}`, job);
  const top = topPrompt > 0 ? await scores(() => topOfPrompt(learner, input, topPrompt, firstReported)) : undefined;
  const scored = targets ? await scores(() => scoreTargets(learner, input, targets)) : undefined;

  const drawn = draws ? await scores(() => drawAtEach(learner, input, draws)) : undefined;

  const samples = await scheduler.sample(owner, call.requests.length, async () => {
    if (signal.aborted) throw new UserError("the request was cancelled");
    return gatherer.sample(sampler, owner, call.requests, signal);
  });
  if (signal.aborted || samples.some(({ stopReason }) => stopReason === "aborted")) {
    throw new UserError("the request was cancelled");
  }
  const body = encodeSampleResponse({
    sequences: samples.map(({ tokens, logprobs, stopReason, topLogprobs }) => ({
      stopReason: stopReason === "stop" ? "stop" : "length",
      tokens,
      logprobs,
      top: topSample > 0 && topLogprobs ? rowsOf(topLogprobs, topSample) : undefined,
    })),
    promptLogprobs: promptLogprobs === null ? undefined : reportedOf(samples[0], firstReported),
    topPromptLogprobs: top,
    targetPromptLogprobs: scored,
    promptAltTokens: drawn,
  });
  return { kind: "protobuf", body, sampledTokens: samples.reduce((sum, { tokens }) => sum + tokens.length, 0) };
}

function reportedOf(first: Sample | undefined, firstReported: number): Float32Array {
  if (!first?.promptLogprobs) throw new RunError("the engine did not return the log-probabilities of the prompt");
  return first.promptLogprobs.map((logprob, position) => (position < firstReported ? Number.NaN : logprob));
}

/** Rows of fixed width; short rows are padded with empty cells. */
function rowsOf(rows: readonly { tokens: Int32Array; logprobs: Float32Array }[], k: number): TopLogprobs {
  const tokens = new Int32Array(rows.length * k);
  const logprobs = new Float32Array(rows.length * k).fill(emptyLogprob);
  rows.forEach((row, index) => {
    tokens.set(row.tokens, index * k);
    logprobs.set(row.logprobs, index * k);
  });
  return { tokens, logprobs, k, length: rows.length };
}

/** `[P, k]`: position 0 and those before `firstReported` are empty. */
async function topOfPrompt(
  learner: Learner,
  input: ModelInput,
  k: number,
  firstReported: number,
): Promise<TopLogprobs> {
  const { length } = input.tokens;
  const tokens = new Int32Array(length * k);
  const logprobs = new Float32Array(length * k).fill(emptyLogprob);
  const from = Math.max(1, firstReported);
  if (from < length) {
    const trained = new Uint8Array(length - 1).fill(1, from - 1);
    const found = await learner.mostLikely!([{ ...input, trained }], k);
    tokens.set(found.tokens, from * k);
    logprobs.set(found.logprobs, from * k);
  }
  return { tokens, logprobs, k, length };
}

async function drawAtEach(learner: Learner, input: ModelInput, draws: NonNullable<SampleCall["draws"]>) {
  const places = input.tokens.length - 1;
  const sequence: Sequence = { ...input, trained: new Uint8Array(places).fill(1) };
  const shape = [places, draws.count];
  const found = places > 0 ? await learner.draws!([sequence], draws) : { tokens: [], logprobs: [] };
  return {
    tokens: encodeTensor({ dtype: "int64", values: Float64Array.from(found.tokens), shape }),
    logprobs: encodeTensor({ dtype: "float32", values: Float32Array.from(found.logprobs), shape }),
  };
}

async function scoreTargets(
  learner: Learner,
  input: ModelInput,
  { places, tokens, shape, sparse }: TargetCells,
): Promise<TensorMessage> {
  const trained = new Uint8Array(input.tokens.length - 1);
  for (const [index, place] of places.entries()) trained[place]! += Number(tokens[index] !== -1);
  const targets = tokens.filter((token) => token !== -1);
  const { logprobs } = await learner.forward([{ ...input, trained, targets }], {});
  let next = 0;
  const values = Float32Array.from(tokens, (token) => (token === -1 ? 0 : (logprobs[next++] ?? Number.NaN)));
  if (sparse) return encodeSparse(values, sparse.rows, sparse.columns, shape);
  return encodeTensor({ dtype: "float32", values, shape });
}
