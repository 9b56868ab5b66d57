/** optim_step and zero_grad. */
import { z } from "zod";
import type { AdamParams } from "../../backends/engine.ts";
import { UserError } from "../../errors.ts";
import { NonFiniteGradientError } from "../../tinker-protocol/failure.ts";
import { adamParams } from "../../tinker-protocol/parameters.ts";
import { readBody } from "../bodies.ts";
import type { LiveModel } from "../models/live-models.ts";
import type { FutureResult } from "../queue/futures.ts";

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
