/** Training requests: forward, forward_backward, optim_step and zero_grad, as an engine takes them. */
import { z } from "zod";
import type { Loss } from "../../algorithms/types.ts";
import type { AdamParams } from "../../backends/engine.ts";
import { EngineDied, NonFiniteLossError } from "../../backends/engine-parts.ts";
import { adamParams, NonFiniteGradientError } from "../../backends/tinker/handshake.ts";
import {
  type Datum,
  type DatumOutput,
  encodeForwardBackwardOutput,
  type ForwardBackwardRequest,
} from "../../backends/tinker/messages.ts";
import { UserError } from "../../base/errors.ts";
import { rowsOf } from "../../trajectories/batch.ts";
import type { Sequence } from "../../trajectories/types.ts";
import type { BaseModel } from "./base-models.ts";
import type { FutureResult } from "./context.ts";
import { readBody } from "./http.ts";
import type { LiveModel } from "./live-models.ts";
import { lossConfig, sumLoss, tinkerLoss } from "./losses.ts";
import { type ImageBase, type ModelInput, readInput } from "./model-input.ts";

// forward and forward_backward: reads the data of a request, computes them in turns, and encodes the answer.

/**
 * @param count called with the number of input tokens before anything is computed
 * @throws UserError when the request's data, loss or settings are wrong; the model is then as it was
 */
export async function forwardBackward(
  model: LiveModel,
  request: ForwardBackwardRequest,
  count: (tokens: number) => void,
): Promise<FutureResult> {
  const call = await readTrainingCall(request, model.base);
  count(call.sequences.reduce((sum, { tokens }) => sum + tokens.length - 1, 0));
  const outputs: DatumOutput[] = [];
  let loss = 0;
  const [, ...ends] = turnsOf(call);
  for (const end of ends) {
    const begin = outputs.length;
    const sequences = call.sequences.slice(begin, end);
    const turnLoss = call.loss(begin, end);
    const turn = request.forwardOnly
      ? await forward(model, sequences, turnLoss)
      : await backward(model, sequences, turnLoss, begin > 0);
    loss += turn.loss;
    for (const [row, computed] of rowsOf(turn.outputs.logprobs, turn.outputs.offsets).entries()) {
      const index = begin + row;
      outputs.push({ logprobs: call.spread(index, computed), trailingShape: call.trailingShapes[index] ?? [] });
    }
  }
  return { kind: "protobuf", body: encodeForwardBackwardOutput({ outputs, metrics: { "loss:sum": loss } }) };
}

async function forward(model: LiveModel, sequences: readonly Sequence[], loss: Loss) {
  const outputs = await model.compute((policy) => policy.learner.forward(sequences, {}));
  return { outputs, loss: loss.evaluate(outputs, Int32Array.from(sequences.keys())).loss };
}

/** A failed backward drops the whole gradient. If there was an earlier part, the next step fails with that reason. */
async function backward(model: LiveModel, sequences: readonly Sequence[], loss: Loss, continues: boolean) {
  return model.compute(async (policy) => {
    const before = model.gradient;
    if (before === "none") model.markGradient("some");
    try {
      return await policy.learner.forwardBackward(sequences, loss);
    } catch (error) {
      if (error instanceof EngineDied) throw error;
      await policy.learner.zeroGrad();
      model.markGradient(before === "none" && !continues ? "none" : "lost");
      if (!(error instanceof NonFiniteLossError)) throw error;
      throw new UserError(error.message, {
        code: error.code,
        hint: "Look for large values in this request's logprobs, advantages or weights.",
        cause: error,
      });
    }
  });
}

/**
 * Tokens that are computed in one turn, without those that a sequence shares with the one before it. Turns depend only on
 * the request, so its results do not depend on other clients.
 */
const turnTokens = 8192;

/** The first datum of each turn, and at the end the number of datums. */
function turnsOf({ sequences }: TrainingCall): number[] {
  const starts: number[] = [];
  let tokens = Number.POSITIVE_INFINITY;
  for (const [index, sequence] of sequences.entries()) {
    const before = sequences[index - 1];
    tokens += sequence.tokens.length - (before ? sharedLength(before, sequence) : 0);
    if (tokens <= turnTokens) continue;
    starts.push(index);
    tokens = sequence.tokens.length;
  }
  return [...starts, sequences.length];
}

function sharedLength({ tokens: left }: Sequence, { tokens: right }: Sequence): number {
  let length = 0;
  while (length < left.length && length < right.length && left[length] === right[length]) length++;
  return length;
}

interface TrainingCall {
  sequences: Sequence[];
  /** `[]` or `[K]` of each datum. */
  trailingShapes: number[][];
  /** A datum's log-probabilities as they are answered, `[N]` or `[N, K]`, from those that were computed. */
  spread(index: number, computed: Float32Array): Float32Array;
  /** The loss of some of the datums, `from` to `to`, as a loss of their sequences. */
  loss(from: number, to: number): Loss;
}

/** The most targets per position, because engines store their number in one byte. */
const maxTargets = 255;

/**
 * Position i of a datum's input predicts `target_tokens[i]`, so the sequence is the input with one token more, and
 * every position is an output. With `lossMasks`: if the setting `masked` is 1, each datum has a `mask`. Positions
 * where it is 0 are not computed and not part of the loss; their log-probabilities are returned as 0.
 * @throws UserError that names the datum, when anything of it does not fit
 */
async function readTrainingCall(request: ForwardBackwardRequest, base: ImageBase): Promise<TrainingCall> {
  const { data, lossFn } = request;
  if (data.length === 0) throw new UserError("the request contains no data");
  const { masked, ...settings } = request.lossConfig;
  const config = lossConfig(lossFn, settings);
  const read: ReadDatum[] = [];
  for (const [index, datum] of data.entries()) {
    try {
      read.push(readDatum(datum, await readInput(datum.input, base), lossFn, masked === 1, base.engine));
    } catch (error) {
      throw error instanceof UserError ? new UserError(`datum ${index}: ${error.message}`, { cause: error }) : error;
    }
  }
  return {
    sequences: read.map(({ sequence }) => sequence),
    trailingShapes: read.map(({ trailingShape }) => trailingShape),
    spread(index, computed) {
      const { chosen, size = 0 } = read[index] ?? {};
      if (!chosen) return computed.slice();
      const whole = new Float32Array(size);
      for (const [order, place] of chosen.entries()) whole[place] = computed[order] ?? 0;
      return whole;
    },
    loss(from, to) {
      const inputs = read.slice(from, to).map((datum) => datum.inputs);
      return sumLoss(lossFn, inputs, config);
    },
  };
}

interface ReadDatum {
  sequence: Sequence;
  trailingShape: number[];
  /** The loss's inputs of the outputs that are computed. */
  inputs: Record<string, Float32Array>;
  /** The number of outputs that are answered, and which of them are computed; absent: all. */
  size: number;
  chosen?: Int32Array;
}

function readDatum(
  datum: Datum,
  { tokens: input, media }: ModelInput,
  lossFn: string,
  masked: boolean,
  { model, capabilities: { outputs } }: BaseModel["engine"],
): ReadDatum {
  if (input.length === 0) throw new UserError("model_input has no tokens");
  if (input.length > model.maxLength) {
    throw new UserError(`model_input has ${input.length} tokens; the model's limit is ${model.maxLength}`);
  }
  const { targets, trailingShape } = readTargets(datum, lossFn, input.length, model.vocabularySize);
  const { mask, ...inputs } = readInputs(datum, lossFn, [input.length, ...trailingShape], masked);

  const several = trailingShape[0] ?? 1;
  const tokens = new Int32Array(input.length + 1);
  tokens.set(input);
  tokens[input.length] = targets.at(-several) ?? 0;
  const size = input.length * several;
  const chosen = mask && Int32Array.from(targets.keys()).filter((index) => mask[index] !== 0);
  const trained = new Uint8Array(input.length);
  const wanted = chosen ?? Int32Array.from({ length: size }, (_, index) => index);
  for (const index of wanted) trained[Math.floor(index / several)]!++;
  const plain = trailingShape.length === 0 && wanted.every((index) => targets[index] === tokens[index + 1]);
  if (!plain && !outputs.includes("targets")) {
    throw new UserError(
      "target_tokens must be model_input shifted by one, because this engine cannot score other tokens",
    );
  }
  const sequence: Sequence = { tokens, trained };
  if (!plain) sequence.targets = wanted.map((index) => targets[index] ?? 0);
  if (media) sequence.media = media;
  if (!chosen) return { sequence, trailingShape, inputs, size };
  const picked: ReadDatum["inputs"] = {};
  for (const [name, values] of Object.entries(inputs)) {
    picked[name] = Float32Array.from(chosen, (index) => values[index] ?? 0);
  }
  return { sequence, trailingShape, inputs: picked, size, chosen };
}

function readTargets(datum: Datum, lossFn: string, length: number, vocabularySize: number) {
  const tensor = datum.lossInputs.target_tokens;
  if (!tensor) throw new UserError("loss_fn_inputs has no target_tokens");
  if (tensor.dtype !== "int64") throw new UserError(`target_tokens is ${tensor.dtype}, not int64`);
  const [rows, ...trailingShape] = tensor.shape;
  const matrix = trailingShape.length === 1 && tinkerLoss(lossFn).severalTargets;
  if (rows !== length || !(trailingShape.length === 0 || matrix)) {
    const shapes = tinkerLoss(lossFn).severalTargets ? `[${length}] or [${length}, K]` : `[${length}]`;
    throw new UserError(
      `target_tokens has the shape [${tensor.shape.join(", ")}]; with ${length} input tokens ${lossFn} requires ${shapes}`,
    );
  }
  const several = trailingShape[0] ?? 1;
  if (several < 1 || several > maxTargets) {
    throw new UserError(`${several} targets per position, but 1 to ${maxTargets} are supported`);
  }
  const wrong = tensor.values.find((token) => !(token >= 0 && token < vocabularySize));
  if (wrong !== undefined) throw new UserError(`target token ${wrong} is not in the vocabulary of ${vocabularySize}`);
  return { targets: Int32Array.from(tensor.values), trailingShape };
}

function readInputs(
  { lossInputs }: Datum,
  lossFn: string,
  shape: readonly number[],
  masked: boolean,
): Record<string, Float32Array> {
  const { inputs, defaults = {} } = tinkerLoss(lossFn);
  const names = masked ? [...inputs, "mask"] : inputs;
  const expected = ["target_tokens", ...names];
  const more = Object.keys(lossInputs).filter((name) => !expected.includes(name));
  if (more.length > 0) {
    throw new UserError(
      `loss_fn_inputs has ${more.join(", ")}, which ${lossFn} does not accept; it accepts ${expected.join(", ")}`,
    );
  }
  const count = shape.reduce((product, size) => product * size, 1);
  return Object.fromEntries(
    names.map((name) => {
      const tensor = lossInputs[name];
      if (!tensor) {
        const value = defaults[name];
        if (value === undefined) throw new UserError(`loss_fn_inputs has no ${name}, which ${lossFn} needs`);
        return [name, new Float32Array(count).fill(value)];
      }
      if (tensor.shape.join() !== shape.join()) {
        throw new UserError(
          `${name} has the shape [${tensor.shape.join(", ")}], target_tokens has [${shape.join(", ")}]`,
        );
      }
      const wrong = tensor.values.findIndex((value) => !Number.isFinite(value));
      if (wrong >= 0) throw new UserError(`${name}[${wrong}] is ${tensor.values[wrong]}, not a finite number`);
      return [name, Float32Array.from(tensor.values)];
    }),
  );
}

// optim_step and zero_grad.

/** With `zeroGrad`. */
export async function dropGradient(model: LiveModel): Promise<FutureResult> {
  return model.compute(async (policy) => {
    await policy.learner.zeroGrad();
    model.markGradient("none");
    return { kind: "json", body: { type: "zero_grad" } };
  });
}

const optimSchema = z.looseObject({ adam_params: adamParams });

/** @throws UserError naming the parameter that is wrong */
function readAdam(body: Record<string, unknown>): AdamParams {
  if (body.optimizer_params !== undefined) {
    const { type } = body.optimizer_params as { type?: unknown };
    throw new UserError(
      `the optimizer ${JSON.stringify(type)} is not supported: models here are trained with AdamW (AdamParams)`,
    );
  }
  const { learning_rate, beta1, beta2, eps, weight_decay, grad_clip_norm } = readBody(optimSchema, body).adam_params;
  return { learningRate: learning_rate, beta1, beta2, eps, weightDecay: weight_decay, maxGradNorm: grad_clip_norm };
}

/** @throws UserError for wrong parameters, and for a gradient that is not finite or was lost: no step is taken then */
export async function optimStep(model: LiveModel, body: Record<string, unknown>): Promise<FutureResult> {
  const adam = readAdam(body);
  return model.compute(async (policy) => {
    if (model.gradient === "lost") {
      model.markGradient("none");
      throw new UserError(
        "the gradient since the last step was dropped because a forward_backward failed, or the server or its engine restarted; no step was taken",
        { code: "state_lost", hint: "Run the forward_backward calls of this step again." },
      );
    }
    model.markDirty();
    const { gradNorm, applied } = await policy.learner.optimStep(adam);
    model.markGradient("none");
    if (!applied) throw new NonFiniteGradientError(gradNorm);
    return { kind: "json", body: { metrics: { grad_norm: gradNorm } } };
  });
}
