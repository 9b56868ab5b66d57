/**
 * Training at a Tinker service: sequences as datums, losses by name or by gradient, and the answers back.
 *
 * Losses that the service has (`cross_entropy`, `importance_sampling`, `ppo`, `cispo`, `dro`) are sent by name and take one pass. The
 * service sums over tokens, so the weight of a token is multiplied into its advantage. This is exact for losses that are linear in the
 * advantage, and for ppo, because a positive factor does not change the branch of the clip. If ratios start from the current policy,
 * these losses, `gspo` and `sapo` have the gradient of `cross_entropy` weighted by the advantage and are sent under that name. All others
 * (a KL term, dual clip, several losses by role) take two passes: a forward, then `cross_entropy` weighted by the negated gradient.
 * dro by name also pulls prompt tokens towards the old policy, so it needs a service with `lossMasks`, and equal weights.
 * Both ways give the same step to six digits; a test compares them for each loss. Hone clamps log-ratios to +-20, named losses do not.
 */
import type { HostedLoss, Loss } from "../../algorithms/types.ts";
import { RunError } from "../../base/errors.ts";
import { type Media, type MediaStore, readImageHeader } from "../../images/images.ts";
import { offsetsOf } from "../../trajectories/batch.ts";
import type { Sequence, TokenOutputs } from "../../trajectories/types.ts";
import type { EngineImages, ForwardBackwardResult } from "../engine.ts";
import { checkLossValue, NonFiniteLossError } from "../engine-parts.ts";
import type { TinkerSession } from "./connection.ts";
import {
  chunkToJson,
  type Datum,
  type DatumOutput,
  decodeForwardBackwardOutput,
  encodeForwardBackwardRequest,
  type InputChunk,
} from "./messages.ts";

// Hone's sequences as Tinker's datums, and the answers back. Pure.

/** The limits of one request, as in the service's own client. */
const chunkLimits = { datums: 1024, bytes: 5_000_000 };

/** A sequence that has outputs: its index, and the places of its outputs in the datum's `[N]` or `[N, K]`. */
export interface Planned {
  sequence: number;
  tokens: Int32Array;
  media?: Sequence["media"];
  targets: Int32Array | undefined;
  places: Int32Array;
  /** Tokens that are scored at each position; 1 gives the shape `[N]`. */
  width: number;
}

export function planDatums(sequences: readonly Sequence[]): Planned[] {
  return sequences.flatMap(({ tokens, trained, targets, media }, sequence) => {
    const width = targets ? trained.reduce((most, count) => Math.max(most, count), 1) : 1;
    const places: number[] = [];
    trained.forEach((count, position) => {
      for (let index = 0; index < (targets ? count : Number(count !== 0)); index++)
        places.push(position * width + index);
    });
    return places.length === 0 ? [] : [{ sequence, tokens, media, targets, places: Int32Array.from(places), width }];
  });
}

/** What a loss reads of each output, by name. */
export type DatumInputs = Readonly<Record<string, ArrayLike<number>>>;

/**
 * Position i of the input predicts target i; inputs are 0 where there is no output.
 * @param input the sequence without its last token
 */
function toDatum(input: InputChunk[], { tokens, targets, places, width }: Planned, inputs: DatumInputs): Datum {
  const length = tokens.length - 1;
  const shape = width === 1 ? [length] : [length, width];
  const spread = <Whole extends Float32Array | Float64Array>(whole: Whole, values: ArrayLike<number>): Whole => {
    for (const [index, place] of places.entries()) whole[place] = values[index] ?? 0;
    return whole;
  };
  const wanted = targets ? spread(new Float64Array(length * width), targets) : Float64Array.from(tokens.subarray(1));
  const lossInputs: Datum["lossInputs"] = { target_tokens: { dtype: "int64", values: wanted, shape } };
  for (const [name, values] of Object.entries(inputs)) {
    lossInputs[name] = { dtype: "float32", values: spread(new Float32Array(length * width), values), shape };
  }
  return { input, lossInputs };
}

/** Cuts datums into requests. */
function chunksOf(datums: readonly Datum[]): Datum[][] {
  const chunks: Datum[][] = [];
  let bytes = 0;
  for (const datum of datums) {
    const own = bytesOf(datum);
    const last = chunks.at(-1);
    if (last && last.length < chunkLimits.datums && bytes + own <= chunkLimits.bytes) {
      last.push(datum);
      bytes += own;
    } else {
      chunks.push([datum]);
      bytes = own;
    }
  }
  return chunks;
}

function bytesOf({ input, lossInputs }: Datum): number {
  const tokens = input.reduce((sum, chunk) => sum + sizeOf(chunk), 0);
  return Object.values(lossInputs).reduce(
    (sum, { dtype, values }) => sum + values.length * (dtype === "int64" ? 8 : 4),
    tokens,
  );
}

function sizeOf(chunk: InputChunk): number {
  if (chunk.kind === "text") return 4 * chunk.tokens.length;
  return chunk.kind === "image" ? chunk.data.length : 0;
}

/** The outputs of all sequences from those of the datums, in the order of `plan`. */
export function gatherOutputs(count: number, plan: readonly Planned[], answers: readonly DatumOutput[]): TokenOutputs {
  if (answers.length !== plan.length) {
    throw new RunError(`the Tinker service returned outputs of ${answers.length} datums for ${plan.length}`);
  }
  const counts = new Array<number>(count).fill(0);
  for (const { sequence, places } of plan) counts[sequence] = places.length;
  const offsets = offsetsOf(counts);
  const logprobs = new Float32Array(counts.reduce((sum, own) => sum + own, 0));
  for (const [index, { sequence, places }] of plan.entries()) {
    const answer: ArrayLike<number> = answers[index]?.logprobs ?? [];
    const own = Float32Array.from(places, (place) => answer[place] ?? Number.NaN);
    logprobs.set(own, offsets[sequence]);
  }
  return { offsets, logprobs };
}

// Sends images to a Tinker service, as chunks of an input.

/** Reads the chunks of some inputs, in their order. */
export const readChunks = (
  inputs: readonly { tokens: Int32Array; media?: readonly Media[] | undefined }[],
  store: MediaStore,
): Promise<InputChunk[][]> => Promise.all(inputs.map(({ tokens, media }) => promptChunks(tokens, media ?? [], store)));

async function promptChunks(tokens: Int32Array, media: readonly Media[], store: MediaStore): Promise<InputChunk[]> {
  const chunks: InputChunk[] = [];
  let read = 0;
  for (const { at, length, hash } of media) {
    if (at > read) chunks.push({ kind: "text", tokens: tokens.slice(read, at) });
    chunks.push({ ...(await imageChunk(store, hash)), expectedTokens: length });
    read = at + length;
  }
  if (read > tokens.length) throw new RunError("a sequence ends within an image");
  if (read < tokens.length) chunks.push({ kind: "text", tokens: tokens.slice(read) });
  return chunks;
}

async function imageChunk(store: MediaStore, hash: string): Promise<InputChunk & { kind: "image" }> {
  const data = await store.read(hash);
  return { kind: "image", data, format: readImageHeader(data).type === "image/png" ? "png" : "jpeg" };
}

/** Number of images whose tokens are cached. */
const maxCached = 4096;

/** The images of a model whose service has `imageTokens`. */
export function servedImages(
  { connection, media: store }: TinkerSession,
  model: string,
  placeholder: EngineImages["placeholder"],
): EngineImages {
  const known = new Map<string, Promise<Int32Array>>();
  const ask = async (hash: string) => {
    const image = chunkToJson(await imageChunk(store, hash));
    const { tokens } = await connection.post("image_tokens", { base_model: model, image });
    if (!Array.isArray(tokens)) throw new RunError("the Tinker service answered image_tokens without tokens");
    return Int32Array.from(tokens);
  };
  return {
    placeholder,
    store,
    tokensOf: (images) =>
      Promise.all(
        images.map(({ hash }) => {
          const tokens = known.get(hash) ?? ask(hash);
          known.set(hash, tokens);
          tokens.catch(() => known.delete(hash));
          const [oldest] = known.keys();
          if (oldest !== undefined && known.size > maxCached) known.delete(oldest);
          return tokens;
        }),
      ),
  };
}

// Training by a Tinker service. A loss that the service has runs there by name, in one pass. Any other loss takes a forward
// pass, then cross entropy weighted by the negated gradient of the loss, which has the same gradient.

/** A model of the service; its operations are numbered from 1 and run in that order. */
export interface RemoteModel {
  id: string;
  nextSeq(): number;
}

/** A backward that the service has accepted: it runs before later requests. */
export interface AcceptedBackward {
  /** False if the gradient is zero everywhere, so nothing was sent. */
  adds: boolean;
  result: Promise<ForwardBackwardResult>;
}

interface Pass {
  lossFn: string;
  config: Readonly<Record<string, number>>;
  /** The loss's inputs of each planned sequence. */
  inputs: readonly DatumInputs[];
  /** The outputs to compute, for each planned sequence: 0 leaves one out. Sent only to a service with `lossMasks`. */
  masks: readonly ArrayLike<number>[];
  forwardOnly: boolean;
}

const isInformative = (weights: ArrayLike<number>) => Array.from(weights).some((weight) => weight !== 0);

const ones = ({ places }: Planned) => new Float32Array(places.length).fill(1);

export function remoteTraining({ connection, capabilities, counts, media }: TinkerSession, model: RemoteModel) {
  const { lossMasks } = capabilities;

  /** Sends all parts of one call before waiting for answers. */
  async function send(
    plan: readonly Planned[],
    { lossFn, config, inputs, masks, forwardOnly }: Pass,
  ): Promise<{ answers: Promise<DatumOutput[]> }> {
    const chunks = await readChunks(
      plan.map(({ tokens, media: own }) => ({ tokens: tokens.subarray(0, -1), media: own })),
      media,
    );
    const datums = plan.map((planned, index) =>
      toDatum(
        chunks[index]!,
        planned,
        lossMasks ? { ...inputs[index], mask: masks[index] ?? [] } : { ...inputs[index] },
      ),
    );
    const requests = chunksOf(datums).map((data) =>
      encodeForwardBackwardRequest({
        modelId: model.id,
        seqId: model.nextSeq(),
        data,
        lossFn,
        forwardOnly,
        lossConfig: lossMasks ? { ...config, masked: 1 } : { ...config },
      }),
    );
    const accepted = await Promise.all(requests.map((request) => connection.post("forward_backward", request)));
    const kind = forwardOnly ? "forward" : "forward_backward";
    const answers = Promise.all(accepted.map((answer) => connection.collect(kind, answer)));
    // A caller that never awaits them has failed with another error.
    answers.catch(() => {});
    const decode = (part: unknown) => decodeForwardBackwardOutput(part as Uint8Array).outputs;
    return { answers: answers.then((results) => results.flatMap(decode)) };
  }

  async function forward(sequences: readonly Sequence[], plan: readonly Planned[]): Promise<TokenOutputs> {
    if (plan.length === 0) return gatherOutputs(sequences.length, plan, []);
    const weights = plan.map(ones);
    const inputs = weights.map((own) => ({ weights: own }));
    const pass = { lossFn: "cross_entropy", config: {}, inputs, masks: weights, forwardOnly: true };
    return gatherOutputs(sequences.length, plan, await (await send(plan, pass)).answers);
  }

  async function byName(
    sequences: readonly Sequence[],
    plan: readonly Planned[],
    loss: Loss,
    { name: lossFn, config }: NonNullable<HostedLoss["tinker"]>,
    inputs: HostedLoss["inputs"],
  ): Promise<AcceptedBackward> {
    for (const [name, values] of Object.entries(inputs)) {
      const bad = values.find((value) => !Number.isFinite(value));
      if (bad !== undefined) throw new NonFiniteLossError(`the loss "${loss.name}" has ${bad} among its ${name}`);
    }
    counts.namedLosses++;
    const { answers } = await send(plan, {
      lossFn,
      config,
      inputs: slicesOf(inputs, plan),
      masks: plan.map(ones),
      forwardOnly: false,
    });
    const result = answers.then((found) => {
      const outputs = gatherOutputs(sequences.length, plan, found);
      const { loss: value, metrics } = evaluated(sequences, loss, outputs);
      return { loss: value, metrics, outputs };
    });
    result.catch(() => {});
    return { adds: true, result };
  }

  async function byGradient(
    sequences: readonly Sequence[],
    plan: readonly Planned[],
    loss: Loss,
  ): Promise<AcceptedBackward> {
    counts.twoPassLosses++;
    const outputs = await forward(sequences, plan);
    const { gradient, loss: value, metrics } = evaluated(sequences, loss, outputs);
    const weights = plan.map(({ sequence }) =>
      gradient.logprobs
        .subarray(outputs.offsets[sequence], outputs.offsets[sequence + 1])
        .map((slope) => (slope === 0 ? 0 : -slope)),
    );
    const result = { loss: value, metrics, outputs };
    const masks = weights.filter(isInformative);
    if (masks.length === 0) return { adds: false, result: Promise.resolve(result) };
    const parts = plan.filter((_, index) => isInformative(weights[index] ?? []));
    const inputs = masks.map((own) => ({ weights: own }));
    const { answers } = await send(parts, { lossFn: "cross_entropy", config: {}, inputs, masks, forwardOnly: false });
    const ended = answers.then(() => result);
    ended.catch(() => {});
    return { adds: true, result: ended };
  }

  return {
    forward: (sequences: readonly Sequence[]) => forward(sequences, planDatums(sequences)),
    async backward(sequences: readonly Sequence[], loss: Loss): Promise<AcceptedBackward> {
      const plan = planDatums(sequences);
      const hosted = loss.hosted?.();
      // Without a mask, such a loss by name also regularizes the prompt's tokens.
      const named = hosted?.tinker;
      const same = named && (lossMasks || !named.needsMask);
      return same && plan.length > 0 && !sequences.some(({ targets }) => targets)
        ? byName(sequences, plan, loss, named, hosted.inputs)
        : byGradient(sequences, plan, loss);
    },
  };
}

function evaluated(sequences: readonly Sequence[], loss: Loss, outputs: TokenOutputs) {
  const value = loss.evaluate(outputs, Int32Array.from(sequences.keys()));
  checkLossValue(loss.name, value, outputs);
  return value;
}

/** The inputs of each planned sequence out of those of all. */
function slicesOf(inputs: Readonly<Record<string, Float32Array>>, plan: readonly Planned[]): DatumInputs[] {
  let from = 0;
  return plan.map(({ places }) => {
    const to = from + places.length;
    const own = Object.entries(inputs).map(([name, values]) => [name, values.subarray(from, to)] as const);
    from = to;
    return Object.fromEntries(own);
  });
}
