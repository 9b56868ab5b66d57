/** A learner in a Python worker: sequences as flat arrays, forward and backward, optimizer steps, states. */
import { resolve } from "node:path";
import type { Loss, LossValue, OutputGradient, Outputs } from "../../algorithms/types.ts";
import { RunError, UserError } from "../../base/errors.ts";
import { addMetrics, concatenate } from "../../base/values.ts";
import type { MediaStore } from "../../images/images.ts";
import { countsOf, offsetsOf } from "../../trajectories/batch.ts";
import type { Sequence, TokenOutputs } from "../../trajectories/types.ts";
import type { AdapterSpec, ForwardBackwardResult, Learner, LearnerSpec, Published, TokenRows } from "../engine.ts";
import { checkLossValue, requireFitting } from "../engine-parts.ts";
import { type Connection, type Frame, type OutgoingArrays, readNumber } from "./connection.ts";
import { mediaFields, withMedia } from "./media.ts";

// Sequences and their per-token outputs as the flat arrays of the protocol, and back. Pure.

/** @throws UserError when a sequence is empty, or its mask or targets do not fit its tokens */
function sequenceArrays(sequences: readonly Sequence[]): OutgoingArrays {
  const offsets = offsetsOf(sequences.map(({ tokens }) => tokens.length));
  for (const [index, sequence] of sequences.entries()) {
    if (sequence.tokens.length === 0) throw new UserError(`sequence ${index} has no tokens`);
    if (sequence.trained.length !== sequence.tokens.length - 1) {
      throw new UserError(
        `sequence ${index} has ${sequence.tokens.length} tokens, so its mask must have ${sequence.tokens.length - 1} entries, not ${sequence.trained.length}`,
      );
    }
  }
  const masks = sequences.map((sequence) => sequence.trained);
  const trained = concatenate(Uint8Array, masks);
  const tokens = concatenate(
    Int32Array,
    sequences.map((sequence) => sequence.tokens),
  );
  const arrays = { tokens, offsets, trained, ...routingArray(sequences) };
  if (sequences.every(({ targets }) => targets === undefined)) return arrays;
  return { ...arrays, targets: concatenate(Int32Array, sequences.map(targetsOf)) };
}

/** The experts of all tokens except each sequence's last; -1 where they are unknown. */
function routingArray(sequences: readonly Sequence[]): OutgoingArrays {
  const known = sequences.find(({ routing }) => routing !== undefined)?.routing;
  if (known === undefined) return {};
  const { layers, expertsOfToken } = known;
  const parts = sequences.map(
    ({ routing, trained }) => routing?.experts ?? new Int16Array(trained.length * layers * expertsOfToken).fill(-1),
  );
  const experts = concatenate(Int16Array, parts);
  return { experts: { data: experts, shape: [experts.length / (layers * expertsOfToken), layers, expertsOfToken] } };
}

function targetsOf({ tokens, trained, targets }: Sequence, index: number): Int32Array {
  if (targets === undefined) return tokens.subarray(1).filter((_, position) => trained[position] !== 0);
  const outputs = trained.reduce((total, count) => total + count, 0);
  if (targets.length !== outputs) {
    throw new UserError(`sequence ${index} has ${targets.length} targets for ${outputs} outputs`);
  }
  return targets;
}

/** Offsets of the outputs of each sequence: one per trained token, or one per target. */
function trainedOffsets(sequences: readonly Sequence[]): Int32Array {
  return offsetsOf(
    sequences.map(
      ({ trained, targets }) => targets?.length ?? trained.reduce((total, flag) => total + (flag === 0 ? 0 : 1), 0),
    ),
  );
}

const gradientNames = ["logprobs", "entropy", "values"] as const;
const raggedNames = [...gradientNames, "concentration"] as const;
type OutputName = (typeof raggedNames)[number];

/** The outputs in a frame for sequences with these trained offsets. @throws RunError if their lengths differ */
function readOutputs(frame: Frame, offsets: Int32Array, names: readonly OutputName[]): TokenOutputs {
  const read = (name: string): Float32Array => {
    const data = frame.arrays[name]?.data;
    if (!(data instanceof Float32Array) || data.length !== offsets.at(-1)) {
      throw new RunError(`the worker sent ${data?.length ?? "no"} ${name} for ${offsets.at(-1)} trained tokens`);
    }
    return data;
  };
  return outputsOf(offsets, names, read);
}

/** Copies outputs of some sequences to their places in the whole batch's. */
function scatter(whole: TokenOutputs, part: TokenOutputs, sequences: Int32Array): void {
  for (const name of raggedNames) {
    const source = part[name];
    const target = whole[name];
    if (source === undefined || target === undefined || target.length === 0) continue;
    sequences.forEach((sequence, index) => {
      target.set(source.subarray(part.offsets[index], part.offsets[index + 1]), whole.offsets[sequence]);
    });
  }
}

/** The gradient of some sequences, from the whole batch's. */
function gather(whole: OutputGradient, offsets: Int32Array, sequences: Int32Array): OutputGradient {
  const pick = (source: Float32Array): Float32Array => {
    const pieces = Array.from(sequences, (sequence) => source.subarray(offsets[sequence], offsets[sequence + 1]));
    return concatenate(Float32Array, pieces);
  };
  const picked = gradientNames.flatMap((name) => (whole[name] === undefined ? [] : [[name, pick(whole[name])]]));
  return Object.fromEntries(picked) as OutputGradient;
}

/** Arrays for the outputs of a whole batch. */
const emptyOutputs = (offsets: Int32Array, names: readonly OutputName[]): TokenOutputs =>
  outputsOf(offsets, names, () => new Float32Array(offsets.at(-1) ?? 0));

/** A critic's outputs have no log-probabilities. */
function outputsOf(
  offsets: Int32Array,
  names: readonly OutputName[],
  make: (name: OutputName) => Float32Array,
): TokenOutputs {
  const made = Object.fromEntries(names.map((name) => [name, make(name)]));
  return { offsets, logprobs: new Float32Array(0), ...made };
}

// Sends the sequences of a call: with the call itself, or once for all calls about them.

/** What a request about these sequences contains. */
export type SendBatch = (
  sequences: readonly Sequence[],
) => Promise<{ fields: Record<string, unknown>; arrays: OutgoingArrays }>;

export const sendWithCall: SendBatch = async (sequences) => {
  const media = sequences.some(({ media }) => media !== undefined) ? mediaFields(sequences) : undefined;
  return { fields: { ...media?.fields }, arrays: { ...sequenceArrays(sequences), ...media?.arrays } };
};

/** Number of batches that the worker keeps: those of the policy, its reference and a critic, and one more. */
const maxStaged = 4;

/** Stages each batch in the worker when it is first needed. A batch is the same if its sequences are the same objects. */
export function sendOnce(connection: Connection): SendBatch {
  const staged = new Map<readonly Sequence[], Promise<number>>();

  async function stage(sequences: readonly Sequence[]): Promise<number> {
    const { fields, arrays } = await sendWithCall(sequences);
    return readNumber((await connection.request("stage", fields, arrays).answer).header.batch);
  }

  function unstage(number: Promise<number>): void {
    // A batch that could not be staged has already failed its call.
    void number.then((batch) => connection.request("unstage", { batch }).answer).catch(() => {});
  }

  return async (sequences) => {
    const key = [...staged.keys()].find((other) => sameElements(other, sequences)) ?? sequences;
    const number = staged.get(key) ?? stage(sequences);
    // The most recently used batch is the last.
    staged.delete(key);
    staged.set(key, number);
    for (const [oldest, its] of [...staged].slice(0, Math.max(0, staged.size - maxStaged))) {
      staged.delete(oldest);
      unstage(its);
    }
    try {
      return { fields: { batch: await number }, arrays: {} };
    } catch (error) {
      if (staged.get(key) === number) staged.delete(key);
      throw error;
    }
  };
}

const sameElements = <T>(one: readonly T[], other: readonly T[]) =>
  one.length === other.length && one.every((element, index) => element === other[index]);

// One loss over one batch, through the worker: it sends outputs one microbatch at a time, the loss turns them into a
// gradient, and the gradient is sent back while the worker's graph is alive.

/** The loss of one microbatch. */
interface Part {
  sequences: Int32Array;
  value: Omit<LossValue, "gradient">;
}

/** A critic outputs only values. */
function outputNames({ entropy, values, concentration }: Outputs): OutputName[] {
  if (values) return ["values"];
  const names: OutputName[] = ["logprobs"];
  if (entropy) names.push("entropy");
  if (concentration) names.push("concentration");
  return names;
}

async function forward(
  connection: Connection,
  policy: number,
  send: SendBatch,
  sequences: readonly Sequence[],
  outputs: Outputs,
): Promise<TokenOutputs> {
  const names = outputNames(outputs);
  const { fields, arrays } = await send(sequences);
  const frame = await connection.request("forward", { policy, outputs: names, ...fields }, arrays).answer;
  return readOutputs(frame, trainedOffsets(sequences), names);
}

/** Tokens at each output's position: `Learner.mostLikely` and `Learner.draws`. */
export async function tokensAtEach(
  connection: Connection,
  op: "most_likely" | "draws",
  fields: Record<string, number>,
  sequences: readonly Sequence[],
): Promise<TokenRows> {
  const sent = await sendWithCall(sequences);
  const { arrays } = await connection.request(op, { ...fields, ...sent.fields }, sent.arrays).answer;
  const [tokens, logprobs] = [arrays.tokens, arrays.logprobs];
  if (!(tokens?.data instanceof Int32Array) || !(logprobs?.data instanceof Float32Array)) {
    throw new RunError(`the worker's answer to ${op} has no tokens`);
  }
  return { tokens: tokens.data, logprobs: logprobs.data, count: tokens.shape[1] ?? 0 };
}

/**
 * @throws NonFiniteLossError when the loss or its gradient is not finite. Gradients of the microbatches before it
 *   stay accumulated: call `zeroGrad`.
 */
export async function forwardBackward(
  connection: Connection,
  policy: number,
  send: SendBatch,
  sequences: readonly Sequence[],
  loss: Loss,
): Promise<ForwardBackwardResult> {
  const offsets = trainedOffsets(sequences);
  const names = outputNames(loss.outputs);
  const outputs = emptyOutputs(offsets, names);
  const whole = loss.coupled ? await evaluateWhole(connection, policy, send, sequences, loss) : null;
  let parts: Part[] = [];
  let failure: { error: unknown } | null = null;

  function pullBack(frame: Frame): OutputGradient {
    const members = readMembers(frame, sequences.length);
    const counts = countsOf(offsets);
    const part = readOutputs(frame, offsetsOf(Array.from(members, (sequence) => counts[sequence] ?? 0)), names);
    scatter(outputs, part, members);
    if (whole !== null) return gather(whole.gradient, offsets, members);
    const { gradient, ...value } = evaluate(loss, part, members);
    // After running out of memory, the worker repeats a microbatch in smaller parts: only those count.
    const again = new Set(members);
    parts = parts.filter((earlier) => !earlier.sequences.some((sequence) => again.has(sequence)));
    parts.push({ sequences: members, value });
    return gradient;
  }

  const { fields, arrays } = await send(sequences);
  const request = connection.request("forward_backward", { policy, outputs: names, ...fields }, arrays, (frame) => {
    if (failure !== null) return;
    try {
      const gradient = pullBack(frame);
      const given = Object.entries(gradient).filter(([name]) => names.some((one) => one === name));
      request.reply("gradient", Object.fromEntries(given));
    } catch (error) {
      failure = { error };
      request.reply("cancel");
    }
  });
  try {
    await request.answer;
  } catch (error) {
    // Report the reason for cancelling, not the answer to the cancelled request.
    failure ??= { error };
  }
  // TypeScript does not see that the event handler above assigns it.
  const failed = failure as { error: unknown } | null;
  if (failed !== null) throw failed.error;
  return { ...addUp(whole === null ? parts.map((part) => part.value) : [whole]), outputs };
}

/** A coupled loss needs all outputs before any gradient, so this runs a forward first. */
async function evaluateWhole(
  connection: Connection,
  policy: number,
  send: SendBatch,
  sequences: readonly Sequence[],
  loss: Loss,
): Promise<LossValue> {
  const outputs = await forward(connection, policy, send, sequences, loss.outputs);
  return evaluate(loss, outputs, Int32Array.from(sequences.keys()));
}

function evaluate(loss: Loss, outputs: TokenOutputs, sequences: Int32Array): LossValue {
  const value = loss.evaluate(outputs, sequences);
  checkLossValue(loss.name, value, outputs);
  return value;
}

function readMembers(frame: Frame, count: number): Int32Array {
  const members = frame.arrays.sequences?.data;
  if (!(members instanceof Int32Array) || members.some((sequence) => sequence < 0 || sequence >= count)) {
    throw new RunError("the worker sent outputs of sequences that it was not given");
  }
  return members;
}

function addUp(values: readonly Omit<LossValue, "gradient">[]): Omit<LossValue, "gradient"> {
  return {
    loss: values.reduce((sum, { loss }) => sum + loss, 0),
    metrics: addMetrics(values.map(({ metrics }) => metrics)),
  };
}

// Losses that a worker computes itself, without sending outputs and waiting for their gradient.

/** The worker's name for a loss, its settings there, and `[N]` inputs over the trained tokens. */
export interface NativeLoss {
  name: string;
  settings: Readonly<Record<string, unknown>>;
  inputs: Readonly<Record<string, Float32Array>>;
}

/**
 * The worker's loss with the same gradient; undefined if it has none.
 * @param offsets of each sequence's trained tokens
 */
type FindNativeLoss = (loss: Loss, offsets: Int32Array) => NativeLoss | undefined;

/** @throws NonFiniteLossError like `forwardBackward`; the gradient stays accumulated: call `zeroGrad` */
async function nativeForwardBackward(
  connection: Connection,
  policy: number,
  send: SendBatch,
  sequences: readonly Sequence[],
  loss: Loss,
  { name, settings, inputs }: NativeLoss,
): Promise<ForwardBackwardResult> {
  const sent = await send(sequences);
  const fields = { policy, outputs: ["logprobs"], loss: { name, settings }, ...sent.fields };
  const frame = await connection.request("forward_backward", fields, { ...sent.arrays, ...inputs }).answer;
  const outputs = readOutputs(frame, trainedOffsets(sequences), ["logprobs"]);
  const value = loss.evaluate(outputs, Int32Array.from(sequences.keys()));
  checkLossValue(loss.name, value, outputs);
  return { loss: value.loss, metrics: value.metrics, outputs };
}

// A learner whose tensors are in a worker: the interface of ../engine.ts spoken over the worker's protocol.

export interface WorkerLearner {
  /** The worker's number for these weights. */
  policy: number;
  learner: Learner;
  /** A request about this policy. */
  call(op: string, fields?: Record<string, unknown>): Promise<Frame>;
}

export interface WorkerLearnerOptions {
  /** Finds losses that the worker computes itself. */
  native?: FindNativeLoss;
  /** Default: each call sends its sequences. */
  send?: SendBatch;
}

/**
 * @param store has the images of sequences
 * @throws UserError when the model does not support this adapter
 */
export async function createWorkerLearner(
  connection: Connection,
  store: MediaStore,
  spec: LearnerSpec,
  { native, send = sendWithCall }: WorkerLearnerOptions = {},
): Promise<WorkerLearner> {
  const fields = { ...spec, adapter: adapterFields(spec.adapter) };
  const created = await connection.request("create_policy", fields).answer;
  const policy = created.header.policy as number;
  const call = (op: string, fields: Record<string, unknown> = {}) =>
    connection.request(op, { ...fields, policy }).answer;
  const published = ({ header }: Frame): Published => ({
    kind: "engine",
    version: readNumber(header.version),
    id: String(policy),
  });

  const learner: Learner = {
    async forward(sequences, outputs) {
      requireFitting(spec, outputs);
      return withMedia(connection, store, () => forward(connection, policy, send, sequences, outputs));
    },
    async forwardBackward(sequences, loss) {
      requireFitting(spec, loss.outputs);
      const found = native?.(loss, trainedOffsets(sequences));
      return withMedia(connection, store, () =>
        found
          ? nativeForwardBackward(connection, policy, send, sequences, loss, found)
          : forwardBackward(connection, policy, send, sequences, loss),
      );
    },
    async optimStep(adam) {
      const { header } = await call("optim_step", {
        learning_rate: adam.learningRate,
        beta1: adam.beta1,
        beta2: adam.beta2,
        eps: adam.eps,
        weight_decay: adam.weightDecay,
        max_grad_norm: adam.maxGradNorm,
      });
      const { grad_norm: gradNorm, applied, lost_to_rounding: lost } = header;
      const step = { gradNorm: readNumber(gradNorm), applied: applied === true };
      return lost === undefined ? step : { ...step, lostToRounding: readNumber(lost) };
    },
    publish: async () => published(await call("publish")),
    async zeroGrad() {
      await call("zero_grad");
    },
    async saveState(dir, { optimizer } = { optimizer: true }) {
      await call("save_state", { dir: resolve(dir), optimizer });
    },
    loadState: async (dir, { optimizer }) => published(await call("load_state", { dir: resolve(dir), optimizer })),
    async export(dir, as) {
      await call("export", { dir: resolve(dir), as });
    },
    async close() {
      await call("close_policy");
    },
  };
  return { policy, learner, call };
}

/** An adapter in the words of the worker. */
export function adapterFields(spec: AdapterSpec) {
  const { trainVision: train_vision, ...adapter } = { trainVision: undefined, ...spec };
  return { ...adapter, train_vision };
}
