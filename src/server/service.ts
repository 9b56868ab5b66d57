/** The server without HTTP: takes requests as plain values, answers at once, computes behind futures. */
import { z } from "zod";
import { EngineDied } from "../backends/engine-died.ts";
import { HoneError, UserError } from "../errors.ts";
import { formatTinkerPath } from "../tinker-protocol/tinker-path.ts";
import { decodeForwardBackwardRequest } from "../tinker-protocol/training.ts";
import { engineDown, findBaseModel } from "./base-models.ts";
import { clientMetadata } from "./client-names.ts";
import { createCompletions } from "./completions.ts";
import type { ServerContext } from "./context.ts";
import type { FutureResult } from "./futures.ts";
import { HttpError } from "./http-error.ts";
import { type LiveModel, modelId } from "./live-models.ts";
import { adapterOf, loraSchema } from "./lora-config.ts";
import type { ModelRecord, SessionRecord } from "./records.ts";
import { readSampleCall } from "./sample-request.ts";
import { createSamplers } from "./samplers.ts";
import { sample } from "./sampling.ts";
import { loadWeights, readBody, requireLoadable, saveExternal, saveForSampler, saveWeights } from "./saving.ts";
import { createSessions } from "./sessions.ts";
import { dropGradient, forwardBackward, optimStep } from "./training.ts";
import { createUploads } from "./uploads.ts";

const optimizer = z.looseObject({ type: z.string() }).nullish();
const metadata = clientMetadata.nullish();
const slot = { session_id: z.string(), model_seq_id: z.int().min(0) };
const createModelSchema = z.looseObject({
  ...slot,
  base_model: z.string(),
  user_metadata: metadata,
  optimizer_config: optimizer,
  lora_config: loraSchema.nullish(),
});
const createFromSchema = z.looseObject({
  ...slot,
  path: z.string(),
  optimizer: z.boolean(),
  base_model: z.string().nullish(),
  user_metadata: metadata,
  optimizer_config: optimizer,
});

/** Bytes of requests that wait, of all models together. */
const maxWaitingBytes = 1 << 29;

export type TrainingKind =
  | "zero_grad"
  | "optim_step"
  | "save_weights"
  | "save_weights_for_sampler"
  | "save_weights_external"
  | "load_weights";

export type Service = ReturnType<typeof createService>;

export function createService(context: ServerContext) {
  const { futures, store, log, metrics, usage } = context;
  const sessions = createSessions(context);
  const samplers = createSamplers(context, sessions);
  const completions = createCompletions(futures);
  const uploads = createUploads(context, sessions);
  let waitingBytes = 0;
  const since = { sequences: 0, tokens: 0 };

  /** Starts work under an id, and tells of its end. */
  function start(
    id: string,
    kind: string,
    who: string,
    work: (signal: AbortSignal) => Promise<FutureResult>,
    what = "",
  ): void {
    const begin = performance.now();
    futures.start(id, async (signal) => {
      let outcome = "failed";
      try {
        const result = await work(signal);
        outcome = result.kind === "gone" ? "gone" : "ok";
        if (kind !== "sample") log.info(who, `${kind}${what}, ${((performance.now() - begin) / 1000).toFixed(2)} s`);
        return result;
      } catch (error) {
        const text = error instanceof Error ? error.message : String(error);
        const [first = "", ...rest] = text.split("\n");
        const details = [...rest, ...(error instanceof HoneError && error.details ? [error.details] : [])].join("\n");
        log.warn(who, `${kind}${what} failed: ${first}`, details === "" ? undefined : details);
        throw error;
      } finally {
        metrics.add("hone_operations_total", { kind, outcome });
        metrics.add("hone_operation_seconds_total", { kind }, (performance.now() - begin) / 1000);
      }
    });
  }

  function requireModel(id: unknown): LiveModel {
    const model = typeof id === "string" ? sessions.findModel(id) : undefined;
    if (!model) throw new HttpError(404, `there is no model ${JSON.stringify(id)}`);
    return model;
  }

  /** Accepts an operation of a model; from here on whatever is wrong with it is told through its future. */
  function accept(
    model: LiveModel,
    seq: number | null,
    kind: string,
    bytes: number,
    what: string,
    work: () => Promise<FutureResult>,
  ): Record<string, unknown> {
    sessions.touch(model.session.id);
    const number = seq ?? model.sequencer.free;
    const id = `${model.id}:${number}@${context.boot}`;
    if (!futures.has(id)) {
      const full = waitingBytes + bytes > maxWaitingBytes && number !== model.sequencer.next;
      if (full || !model.sequencer.hasRoom(number)) {
        metrics.add("hone_refused_total", { queue: "training" });
        throw new HttpError(429, `the queue of ${model.id} is full; try again`);
      }
      waitingBytes += bytes;
      model.record.lastRequestAt = context.now().toISOString();
      const run = () => model.sequencer.run(number, work);
      start(
        id,
        kind,
        model.id,
        () =>
          run().finally(() => {
            waitingBytes -= bytes;
          }),
        what,
      );
    }
    return { request_id: id, model_id: model.id };
  }

  /** Makes a model's record and opens it; where that fails there is no model. */
  function addModel(
    session: SessionRecord,
    number: number,
    kind: string,
    make: () => Pick<ModelRecord, "baseModel" | "adapter" | "userMetadata" | "state" | "lastSaved">,
    answer: (id: string) => Record<string, unknown>,
  ): Record<string, unknown> {
    const id = modelId(session.id, number);
    const request = `${id}:0@${context.boot}`;
    start(request, kind, id, async () => {
      if (!sessions.findModel(id)) {
        const time = context.now().toISOString();
        const times = { createdAt: time, lastRequestAt: time };
        session.models.push({
          number,
          ...make(),
          ...times,
          nextSeq: 1,
          dirty: false,
          unstepped: false,
          untrainable: false,
        });
      }
      try {
        await requireModel(id).compute(async () => {});
      } catch (error) {
        session.models = session.models.filter((model) => model.number !== number);
        sessions.forgetModel(id);
        throw error;
      }
      store.saveSession(session);
      return { kind: "json", body: answer(id) };
    });
    return { request_id: request, model_id: id };
  }

  const operations: Record<TrainingKind, (model: LiveModel, body: Record<string, unknown>) => Promise<FutureResult>> = {
    optim_step: optimStep,
    save_weights: (model, body) => saveWeights(context, model, body),
    save_weights_external: (model, body) => saveExternal(context, model, body),
    zero_grad: dropGradient,
    load_weights: (model, body) => loadWeights(context, model, body),
    save_weights_for_sampler: (model, body) =>
      saveForSampler(context, model, body, (number, weights) =>
        samplers.add(model.session, { number, baseModel: model.record.baseModel, modelPath: null, weights }),
      ),
  };

  return {
    context,
    sessions,
    samplers,
    completions,
    uploads,
    requireModel,

    /** Why an operation does not run yet, for its client: null while nothing unusual holds it up. */
    pauseOf(request: string): string | null {
      const [, id = "", seq] = /^(.+):(\d+)@/.exec(request) ?? [];
      const gap = sessions.liveModel(id)?.sequencer.gap;
      if (!gap || Number(seq) <= gap.missing) return null;
      const seconds = Math.max(0, Math.ceil((gap.until - performance.now()) / 1000));
      return `request ${gap.missing} of ${id} has not arrived: its client failed before sending it, or it is still on its way. The server waits up to ${seconds} s more (hone serve --gap-seconds), then skips it`;
    },

    createModel(body: unknown) {
      const request = readBody(createModelSchema, body);
      const session = sessions.touch(request.session_id);
      const { engine } = findBaseModel(context.models, request.base_model);
      checkOptimizer(request.optimizer_config);
      const adapter = adapterOf(request.lora_config ?? loraSchema.parse({}), engine.capabilities);
      const { base_model: baseModel, user_metadata } = request;
      const made = { baseModel, adapter, userMetadata: user_metadata ?? null, state: null, lastSaved: null };
      return addModel(
        session,
        request.model_seq_id,
        "create_model",
        () => made,
        (id) => ({ type: "create_model", model_id: id }),
      );
    },

    /** A new model with the weights, and perhaps the optimizer, of a checkpoint. */
    createModelFrom(body: unknown) {
      const request = readBody(createFromSchema, body);
      const session = sessions.touch(request.session_id);
      checkOptimizer(request.optimizer_config);
      const make = () => {
        const checkpoint = requireLoadable(context, request.path, request.optimizer);
        const base = findBaseModel(context.models, checkpoint.baseModel);
        if (request.base_model && findBaseModel(context.models, request.base_model) !== base) {
          throw new UserError(
            `${request.path} is of the base model ${checkpoint.baseModel}, not of ${request.base_model}`,
          );
        }
        return {
          baseModel: request.base_model ?? checkpoint.baseModel,
          adapter: checkpoint.adapter,
          userMetadata: request.user_metadata ?? null,
          state: { data: checkpoint.data, optimizer: request.optimizer },
          lastSaved: formatTinkerPath(checkpoint),
        };
      };
      return addModel(session, request.model_seq_id, "load_weights", make, (id) => ({
        type: "load_weights",
        path: request.path,
        model_id: id,
      }));
    },

    forwardBackward(bytes: Uint8Array) {
      let request: ReturnType<typeof decodeForwardBackwardRequest>;
      try {
        request = decodeForwardBackwardRequest(bytes);
      } catch (cause) {
        throw new HttpError(400, `the body is no ForwardBackwardRequest: ${cause}`, { cause });
      }
      const model = requireModel(request.modelId);
      const seq = request.seqId > 0 ? request.seqId : null;
      const kind = request.forwardOnly ? "forward" : "forward_backward";
      const what = ` of ${request.datums} datums`;
      return accept(model, seq, kind, bytes.byteLength, what, async () => {
        const content = request.content();
        const tokens = content.data.reduce(
          (sum, { input }) =>
            sum + input.reduce((part, chunk) => part + (chunk.kind === "text" ? chunk.tokens.length : 0), 0),
          0,
        );
        metrics.add("hone_trained_tokens_total", {}, tokens);
        usage.add("training", model.session.id, model.base.name, tokens);
        return forwardBackward(model, content);
      });
    },

    train(kind: TrainingKind, body: Record<string, unknown>) {
      const model = requireModel(body.model_id);
      const seq = Number.isSafeInteger(body.seq_id) ? (body.seq_id as number) : null;
      return accept(model, seq, kind, 0, "", () => operations[kind](model, body));
    },

    /** @param seq as digits: these ids are longer than a number can be exact */
    sample(body: Record<string, unknown>, seq: string) {
      const id = body.sampling_session_id;
      const { session, base } = samplers.require(id);
      if (session.finished) throw new HttpError(410, `the session ${session.id} is finished`);
      sessions.touch(session.id);
      const request = `${id}:${seq}@${context.boot}`;
      const given = body.num_samples;
      const count = typeof given === "number" && given >= 1 && given <= 1024 ? Math.floor(given) : 1;
      if (!futures.has(request)) {
        const leave = base.scheduler.enter(count);
        if (!leave) {
          metrics.add("hone_refused_total", { queue: "sampling" });
          throw new HttpError(429, "too many sequences wait to be sampled; try again");
        }
        const work = async (signal: AbortSignal): Promise<FutureResult> => {
          const call = readSampleCall(body, base.engine);
          metrics.add("hone_prompt_tokens_total", {}, call.prompt.length);
          const how = call.topPrompt > 0 || call.targets || call.draws ? "scores" : "samples";
          const sampled = samplers.use(String(id), how, (policy) => sample(policy, base, session.id, call, signal));
          const result = await sampled.catch((error: unknown) => {
            // The weights are on disk: clients ask anew, as after a restart of the server.
            if (!(error instanceof EngineDied)) throw error;
            if (base.keeper.lost) throw engineDown(base, error);
            return null;
          });
          if (!result) return { kind: "gone", why: "the engine died while it was sampled" };
          metrics.add("hone_sampled_tokens_total", {}, result.sampledTokens);
          usage.add("sampling_prefill", session.id, base.name, call.prompt.length);
          usage.add("sampling_sample", session.id, base.name, result.sampledTokens);
          since.sequences += call.requests.length;
          since.tokens += result.sampledTokens;
          return { kind: result.kind, body: result.body };
        };
        start(request, "sample", String(id), (signal) => work(signal).finally(leave));
      }
      const sequences = Array.from({ length: count }, (_, index) => `${request}#${index}`);
      return { request_id: request, sample_sequence_ids: sequences };
    },

    /** One line of what was sampled since the last. */
    logSampling() {
      if (since.sequences === 0) return;
      log.info("", `sampled ${since.sequences} sequences, ${since.tokens} tokens`);
      Object.assign(since, { sequences: 0, tokens: 0 });
    },
  };
}

function checkOptimizer(config: { type: string } | null | undefined): void {
  if (!config || config.type === "adamw") return;
  throw new UserError(`the optimizer "${config.type}" is not offered; models here are trained with AdamW`);
}
