/** Creates models: new ones, and from checkpoints. */
import { randomInt } from "node:crypto";
import { z } from "zod";
import type { Capabilities } from "../../backends/engine.ts";
import { UserError } from "../../errors.ts";
import { loraConfig, wholeAtLeast } from "../../tinker-protocol/parameters.ts";
import { formatTinkerPath } from "../../tinker-protocol/tinker-path.ts";
import { clientMetadata, readBody } from "../bodies.ts";
import type { Service } from "../service.ts";
import { type LoraAdapter, modelRecord } from "../state/records.ts";
import { requireLoadable } from "../state/saving.ts";
import { findBaseModel, requireBaseModel } from "./base-models.ts";
import { modelId } from "./live-models.ts";

const common = {
  session_id: z.string(),
  model_seq_id: wholeAtLeast(0),
  user_metadata: clientMetadata.nullish(),
  optimizer_config: z.looseObject({ type: z.string() }).nullish(),
};
const createModelSchema = z.looseObject({ ...common, base_model: z.string(), lora_config: loraConfig.nullish() });
const createFromSchema = z.looseObject({
  ...common,
  path: z.string(),
  optimizer: z.boolean(),
  base_model: z.string().nullish(),
});
type CommonRequest = Pick<z.output<typeof createModelSchema>, keyof typeof common>;

type ModelCreation = Pick<Service, "context" | "sessions" | "operations">;

export function createModel(creation: ModelCreation, body: unknown): Record<string, unknown> {
  const { models } = creation.context;
  const request = readBody(createModelSchema, body);
  const { engine } = findBaseModel(models, request.base_model);
  const adapter = adapterOf(request.lora_config ?? loraConfig.parse({}), engine.capabilities);
  return addModel(creation, request, "create_model", () => ({ baseModel: request.base_model, adapter }), {});
}

/** A new model with the weights, and on request the optimizer state, of a checkpoint. */
export function createModelFrom(creation: ModelCreation, body: unknown): Record<string, unknown> {
  const { context } = creation;
  const request = readBody(createFromSchema, body);
  const { path, optimizer, base_model } = request;
  const make = () => {
    const checkpoint = requireLoadable(context, path, optimizer);
    requireBaseModel(context.models, { path, baseModel: checkpoint.baseModel }, base_model);
    return {
      baseModel: base_model ?? checkpoint.baseModel,
      adapter: checkpoint.adapter,
      state: { data: checkpoint.data, optimizer },
      lastSaved: formatTinkerPath(checkpoint),
    };
  };
  return addModel(creation, request, "load_weights", make, { path });
}

/** Records a model and opens it. When that fails, the record is removed. */
function addModel(
  { context, sessions, operations }: ModelCreation,
  { session_id, model_seq_id: number, optimizer_config: optimizer, user_metadata }: CommonRequest,
  kind: string,
  make: () => Pick<z.input<typeof modelRecord>, "baseModel" | "adapter" | "state" | "lastSaved">,
  answer: Record<string, unknown>,
): Record<string, unknown> {
  const session = sessions.touch(session_id);
  if (optimizer && optimizer.type !== "adamw") {
    throw new UserError(`the optimizer "${optimizer.type}" is not supported: models here are trained with AdamW`);
  }
  const id = modelId(session.id, number);
  const request = `${id}:0@${context.boot}`;
  const work = async () => {
    if (!sessions.findModel(id)) {
      const time = context.now().toISOString();
      session.models.push(
        modelRecord.parse({ ...make(), number, userMetadata: user_metadata, createdAt: time, lastRequestAt: time }),
      );
    }
    try {
      await sessions.requireModel(id).compute(async () => {});
    } catch (error) {
      session.models = session.models.filter((model) => model.number !== number);
      sessions.forgetModel(id);
      throw error;
    }
    context.store.saveSession(session);
    return { kind: "json" as const, body: { type: kind, ...answer, model_id: id } };
  };
  operations.start(request, id, { kind, work });
  return { request_id: request, model_id: id };
}

/** `lora_config` of the protocol as an adapter of an engine. @throws UserError when nothing would be trained, or the engine cannot */
export function adapterOf(config: z.output<typeof loraConfig>, { loraTargets }: Capabilities): LoraAdapter {
  const { rank, alpha, seed, train_attn, train_mlp, train_unembed } = config;
  const wanted = { attn: train_attn, mlp: train_mlp, unembed: train_unembed };
  const targets = (["attn", "mlp", "unembed"] as const).filter((target) => wanted[target]);
  if (targets.length === 0) throw new UserError("at least one of train_attn, train_mlp and train_unembed must be true");
  const missing = targets.filter((target) => !loraTargets.includes(target));
  if (missing.length > 0) throw new UserError(`this engine does not support LoRA on ${missing.join(", ")}`);
  return { kind: "lora", rank, alpha, targets, seed: seed ?? randomInt(2 ** 47) };
}
