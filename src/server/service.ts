/** The server without HTTP: accepts requests as plain values and answers immediately; results come through futures. */
import { z } from "zod";
import { wholeAtLeast } from "../tinker-protocol/parameters.ts";
import { decodeForwardBackwardRequest } from "../tinker-protocol/training.ts";
import type { ServerContext } from "./context.ts";
import { HttpError } from "./http-error.ts";
import { createModel, createModelFrom } from "./models/create-model.ts";
import type { LiveModel } from "./models/live-models.ts";
import type { FutureResult } from "./queue/futures.ts";
import { createOperations } from "./queue/operations.ts";
import { readBody } from "./read-body.ts";
import { createSampleAcceptor } from "./sampling/accept-sample.ts";
import { createCompletions } from "./sampling/completions.ts";
import { createGenerator } from "./sampling/generate.ts";
import { createSamplers } from "./sampling/samplers.ts";
import { createServedAdapters } from "./sampling/served-adapters.ts";
import { loadWeights, saveExternal, saveForSampler, saveWeights } from "./state/saving.ts";
import { createSessions } from "./state/sessions.ts";
import { createUploads } from "./state/uploads.ts";
import { dropGradient, forwardBackward, optimStep } from "./training/training.ts";

export type Service = ReturnType<typeof createService>;

export function createService(context: ServerContext) {
  const { metrics, usage } = context;
  const sessions = createSessions(context);
  const samplers = createSamplers(context, sessions);
  const adapters = createServedAdapters(context);
  const operations = createOperations(context, sessions);
  const sampling = createSampleAcceptor(context, sessions, samplers, operations);
  const creation = { context, sessions, operations };

  /** By the path that clients post to. */
  const training: Record<string, (model: LiveModel, body: Record<string, unknown>) => Promise<FutureResult>> = {
    optim_step: optimStep,
    zero_grad: dropGradient,
    save_weights: (model, body) => saveWeights(context, model, body),
    save_weights_external: (model, body) => saveExternal(context, model, body),
    save_weights_for_sampler: (model, body) =>
      saveForSampler(context, model, body, (number, weights) =>
        samplers.add(model.session, { number, baseModel: model.record.baseModel, weights }),
      ),
    load_weights: (model, body) => loadWeights(context, model, body),
  };

  return {
    context,
    sessions,
    samplers,
    adapters,
    generator: createGenerator(context, samplers, adapters),
    completions: createCompletions(context.futures),
    uploads: createUploads(context, sessions),
    createModel: (body: unknown) => createModel(creation, body),
    createModelFrom: (body: unknown) => createModelFrom(creation, body),
    sample: sampling.accept,
    logSampling: sampling.log,

    /** Why an operation is waiting, as text for its client; null if nothing unusual delays it. */
    pauseOf(request: string): string | null {
      const [, id = "", seq] = /^(.+):(\d+)@/.exec(request) ?? [];
      const gap = sessions.liveModel(id)?.sequencer.gap;
      if (!gap || Number(seq) <= gap.missing) return null;
      const seconds = Math.max(0, Math.ceil((gap.until - performance.now()) / 1000));
      return `request ${gap.missing} of ${id} has not arrived: its client failed before sending it, or it is still on its way. The server waits up to ${seconds} s more (hone serve --gap-seconds), then skips it`;
    },

    /** The client knows that the operation was lost with an earlier start of the server, and does not send it again. */
    forget(request: string): void {
      const [, id = "", seq] = /^(.+:train:\d+):(\d+)@/.exec(request) ?? [];
      if (!request.endsWith(`@${context.boot}`)) sessions.findModel(id)?.sequencer.lose(Number(seq));
    },

    forwardBackward(bytes: Uint8Array) {
      const request = readForwardBackward(bytes);
      const model = sessions.requireModel(request.modelId);
      return operations.accept(model, request.seqId > 0 ? request.seqId : null, bytes.byteLength, {
        kind: request.forwardOnly ? "forward" : "forward_backward",
        details: ` of ${request.datums} datums`,
        async work() {
          return forwardBackward(model, request.content(), (tokens) => {
            metrics.add("hone_trained_tokens_total", {}, tokens);
            usage.add("training", model.session.id, model.base.name, tokens);
          });
        },
      });
    },

    /** Operations that take JSON. */
    training: Object.entries(training).map(([kind, run]) => ({
      kind,
      accept(body: Record<string, unknown>) {
        const model = sessions.requireModel(body.model_id);
        const { seq_id: seq = null } = readBody(numbered, body);
        return operations.accept(model, seq, 0, { kind, work: () => run(model, body) });
      },
    })),
  };
}

const numbered = z.looseObject({ seq_id: wholeAtLeast(0).nullish() });

function readForwardBackward(bytes: Uint8Array): ReturnType<typeof decodeForwardBackwardRequest> {
  try {
    return decodeForwardBackwardRequest(bytes);
  } catch (cause) {
    throw new HttpError(400, `the body is not a ForwardBackwardRequest: ${cause}`, { cause });
  }
}
