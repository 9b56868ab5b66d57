/** The engine over a Tinker service. */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { UserError } from "../../base/errors.ts";
import type { Config } from "../../config/schema.ts";
import type { MediaStore } from "../../images/images.ts";
import type { EngineHooks } from "../backend.ts";
import type { Engine, ModelInfo, Policy, PolicySpec } from "../engine.ts";
import { requireCreatable, requireSameVocabulary } from "../engine-parts.ts";
import { type ConnectionOptions, createConnection, openSession, type TinkerSession } from "./connection.ts";
import { capabilitiesOf, engineCapabilities, handshakeAnswer, type ModelDescription } from "./handshake.ts";
import { createBasePolicy, createTinkerPolicy, type PolicyOptions } from "./learner.ts";
import { sdkVersion } from "./messages.ts";
import { servedImages } from "./training.ts";

// A session with a Tinker service, shared by all models of a run and kept alive by a heartbeat.

export interface TinkerEngineOptions extends ConnectionOptions, PolicyOptions {
  /** The model's name at the service. */
  model: string;
  /** The session's name in the service's lists. */
  name?: string;
  /** Returns the folder of the model's tokenizer if the service does not report one. */
  tokenizerFolder: (model: string) => Promise<string>;
  /** Returns what the files in that folder say; default: reads them. */
  facts?: Pick<ModelInfo, "architecture" | "vocabularySize" | "eosTokenIds">;
  /** Keeps the images of prompts; default: memory. */
  media?: MediaStore | undefined;
}

export function tinkerEngineOptions(
  config: Config,
  service: { baseUrl: string; apiKey: string },
  { onStatus, media }: Pick<EngineHooks, "onStatus" | "media">,
): TinkerEngineOptions {
  return {
    ...service,
    model: config.model.name,
    overlap: config.fuse_forward_backward_and_optim_step,
    name: `${config.rllm.trainer.project_name}-${config.rllm.trainer.experiment_name}`,
    tokenizerFolder: async (model) => (await import("./tokenizer-files.ts")).tokenizerFolder(model),
    onStatus,
    media,
  };
}

// Opens a Tinker service as an engine: the hosted one, `hone serve`, or Hone's own in this process.

/**
 * @throws UserError when the service refuses the key or does not have the model
 * @throws RunError when it does not answer
 */
export async function openTinkerEngine(options: TinkerEngineOptions): Promise<Engine> {
  const { baseUrl, onStatus } = options;
  onStatus?.(`reaching the Tinker service at ${baseUrl}`);
  const connection = createConnection(options);
  const parsed = handshakeAnswer.safeParse(await connection.get("get_server_capabilities"));
  if (!parsed.success) {
    throw new UserError(
      `${baseUrl} is not a Tinker service that Hone can read: get_server_capabilities: ${z.prettifyError(parsed.error)}`,
      { hint: "Correct tinker_base_url or TINKER_BASE_URL." },
    );
  }
  const { supported_models: served } = parsed.data;
  const names = served.flatMap(({ model_name }) => model_name ?? []);
  const servedAs = (name: string, key: string) => {
    const known = served.find(({ model_name }) => model_name === name);
    if (known) return known;
    throw new UserError(`${key}: the Tinker service at ${baseUrl} does not serve "${name}"`, {
      hint: `It serves ${names.join(", ")}.`,
    });
  };
  const found = servedAs(options.model, "model.name");
  const model = await modelInfo(options, found.max_context_length ?? 32_768, found.hone);
  const session = await openSession(connection, {
    capabilities: capabilitiesOf(parsed.data),
    name: options.name,
    onStatus,
    media: options.media,
  });
  const servedModel = { name: options.model, eosTokenIds: model.eosTokenIds };
  const capabilities = engineCapabilities(session.capabilities, { otherModels: names.length > 1 });
  async function createPolicy({ adapter }: PolicySpec): Promise<Policy> {
    if (adapter.kind === "none") return createBasePolicy(session, servedModel);
    if (adapter.kind === "lora") return createTinkerPolicy(session, servedModel, adapter, options);
    throw new UserError("Tinker trains LoRA adapters, not all weights", {
      hint: "model.lora_rank=32, or rllm/backend=local.",
    });
  }
  return {
    capabilities,
    model,
    versions: { "tinker protocol": sdkVersion },
    ...imagesOf(session, options.model, found.hone),
    createPolicy,
    async createLearner(spec) {
      requireCreatable(capabilities, spec);
      if (spec.model === undefined) return (await createPolicy(spec)).learner;
      const about = servedAs(spec.model, "a teacher or a reference");
      const named = { ...options, model: spec.model };
      const other = await modelInfo(named, about.max_context_length ?? 32_768, about.hone);
      requireSameVocabulary(model, other);
      const { learner } = createBasePolicy(session, { name: spec.model, eosTokenIds: other.eosTokenIds });
      // One more token is sampled.
      return { ...learner, maxLength: other.maxLength - 1 };
    },
    stats: async () => ({
      "tinker/requests": connection.counts.requests,
      "tinker/retries": connection.counts.retries,
      "tinker/named_losses": session.counts.namedLosses,
      "tinker/two_pass_losses": session.counts.twoPassLosses,
      "tinker/deleted_checkpoints": session.counts.deletedCheckpoints,
    }),
    waitingFor: connection.waitingFor,
    close: session.close,
  };
}

function imagesOf(
  session: TinkerSession,
  model: string,
  own: ModelDescription | undefined,
): Pick<Engine, "images" | "imagesReason"> {
  if (!own || !session.capabilities.imageTokens)
    return { imagesReason: "this Tinker service does not say which tokens stand for an image" };
  const { imagePlaceholder: placeholder, imagesReason } = own;
  if (placeholder) return { images: servedImages(session, model, placeholder) };
  return imagesReason === undefined ? {} : { imagesReason };
}

async function modelInfo(
  { model: name, tokenizerFolder, facts }: TinkerEngineOptions,
  maxLength: number,
  own: ModelDescription | undefined,
): Promise<ModelInfo> {
  const here = own !== undefined && (own.directory === "" || existsSync(join(own.directory, "tokenizer.json")));
  const directory = here ? own.directory : await tokenizerFolder(name);
  const common = { name, directory, maxLength, attention: "packed" as const };
  if (own) return { ...own, ...common };
  return {
    ...common,
    ...(facts ?? (await import("./tokenizer-files.ts")).readTokenizerFacts(directory)),
    parameters: Number.NaN,
    dtype: "the service's own",
    device: "the service's own",
  };
}
