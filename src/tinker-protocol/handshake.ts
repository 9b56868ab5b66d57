/** What a service says of itself at the beginning: its models, and what it can do beyond Tinker's documented protocol. */
import { z } from "zod";

const offered = z.boolean().default(false);

/** Additions to the protocol, each of which a service states; an ordinary service states none. */
const serviceCapabilities = z.object({
  /** `lora_config.alpha` sets the scale of an adapter, alpha / rank. Tinker's is 32 / rank. */
  adapterAlpha: offered,
  /** The setting `masked` of losses: each datum has a `mask` of the outputs that are computed. */
  lossMasks: offered,
  /** `raw_logprobs` of samples: log-probabilities of the model itself, at temperature 1 and without filters. */
  exactLogprobs: offered,
  /** `ignore_eos` of samples: the model's own end tokens do not end a sequence. */
  ignoreEos: offered,
  /** `asample_many`: many samples in one request, whose answer streams the results. */
  sampleMany: offered,
  /** `zero_grad` drops the accumulated gradient. */
  zeroGrad: offered,
  /** `image_tokens`: which tokens stand for an image. */
  imageTokens: offered,
});
export type ServiceCapabilities = Readonly<z.output<typeof serviceCapabilities>>;

/** A service with the documented protocol alone. */
export const documentedCapabilities: ServiceCapabilities = serviceCapabilities.parse({});

/** `hone serve`, and Hone's service in the process of a run. */
export const honeCapabilities: ServiceCapabilities = {
  adapterAlpha: true,
  lossMasks: true,
  exactLogprobs: true,
  ignoreEos: true,
  sampleMany: true,
  zeroGrad: true,
  imageTokens: true,
};

/** `hone serve` of version 0.1.0 describes its models, but does not state its capabilities. */
const unstatedCapabilities: ServiceCapabilities = {
  ...documentedCapabilities,
  adapterAlpha: true,
  lossMasks: true,
  exactLogprobs: true,
  ignoreEos: true,
  sampleMany: true,
  zeroGrad: true,
};

/** What Hone's services say of a model; other clients ignore it. */
const modelDescription = z.object({
  directory: z.string(),
  architecture: z.string(),
  parameters: z.number(),
  vocabularySize: z.number(),
  eosTokenIds: z.array(z.int()),
  dtype: z.string(),
  device: z.string(),
  imagePlaceholder: z.object({ text: z.string(), id: z.int() }).optional(),
  imagesReason: z.string().optional(),
});
export type ModelDescription = z.output<typeof modelDescription>;

/** The answer of `get_server_capabilities`. */
export const handshakeAnswer = z.looseObject({
  supported_models: z.array(
    z.looseObject({
      model_name: z.string().nullish(),
      max_context_length: z.int().nullish(),
      hone: modelDescription.optional(),
    }),
  ),
  hone: serviceCapabilities.optional(),
});
export type HandshakeAnswer = z.output<typeof handshakeAnswer>;

export function capabilitiesOf({ hone, supported_models: models }: HandshakeAnswer): ServiceCapabilities {
  if (hone) return hone;
  return models.some((model) => model.hone) ? unstatedCapabilities : documentedCapabilities;
}
