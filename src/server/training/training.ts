/** The operations of a training client: forward, forward_backward, optim_step. */
import { z } from "zod";
import type { Loss } from "../../algorithms/types.ts";
import { NonFiniteLossError } from "../../backends/check-loss-value.ts";
import type { AdamParams } from "../../backends/engine.ts";
import { EngineDied } from "../../backends/engine-died.ts";
import { UserError } from "../../errors.ts";
import { NonFiniteGradientError } from "../../tinker-protocol/failure.ts";
import { adamParams } from "../../tinker-protocol/parameters.ts";
import {
  type DatumOutput,
  encodeForwardBackwardOutput,
  type ForwardBackwardRequest,
} from "../../tinker-protocol/training.ts";
import { rowsOf } from "../../trajectories/batch.ts";
import type { Sequence } from "../../trajectories/types.ts";
import { readBody } from "../bodies.ts";
import type { LiveModel } from "../models/live-models.ts";
import type { FutureResult } from "../queue/futures.ts";
import { readTrainingCall, type TrainingCall } from "./datums.ts";

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

/** Not in Tinker's protocol: for Hone's own client. */
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
