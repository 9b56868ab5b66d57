/** What a service says of itself at the beginning: its models, and what it can do beyond Tinker's documented protocol. */

import { z } from "zod";
import { UserError } from "../../base/errors.ts";
import type { Capabilities } from "../engine.ts";

const offered = z.boolean().default(false);

/**
 * Additions to the protocol, each of which a service states in the field `hone`; an ordinary service states none. The client asks for
 * each by its name. Without `adapterAlpha`, `model.lora_alpha` must be 32; without `lossMasks`, dro takes two passes; without
 * `exactLogprobs`, samples are marked where temperature or filters change them; without `ignoreEos`, it cannot be combined with other stop
 * tokens; without `zeroGrad`, a gradient that is not finite ends the run; without `imageTokens`, images are not supported.
 */
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

// A failed operation as its future reports it. Tinker's own clients read `error` and `category`; the rest is Hone's.

export const failureSchema = z.looseObject({
  /** The message and the hint in one text. */
  error: z.string(),
  category: z.enum(["user", "server"]).catch("server"),
  code: z.string().optional().catch(undefined),
  message: z.string().optional().catch(undefined),
  hint: z.string().optional().catch(undefined),
  /** With the code "non_finite_gradient": NaN or infinite, as text. */
  grad_norm: z.string().optional().catch(undefined),
});
export type Failure = z.input<typeof failureSchema>;

/** The optimizer took no step and the gradient is gone. */
export class NonFiniteGradientError extends UserError {
  override name = "NonFiniteGradientError";
  readonly gradNorm: number;

  constructor(gradNorm: number) {
    super(`the gradient's norm is ${gradNorm}: no step was taken and the gradient was dropped`, {
      code: "non_finite_gradient",
    });
    this.gradNorm = gradNorm;
  }
}

// The numbers that clients send: what each may be, and the sentence that says so.

const shown = (value: unknown) => (typeof value === "number" ? String(value) : JSON.stringify(value)?.slice(0, 100));

function number(rule: string, fits: (value: number) => boolean) {
  const isFitting = (value: unknown) => typeof value === "number" && Number.isFinite(value) && fits(value);
  return z.custom<number>(isFitting, {
    error: ({ input }) => `must be ${rule}, but ${input === undefined ? "is missing" : `is ${shown(input)}`}`,
  });
}

/** Integers beyond 2^53 have been rounded, so they are refused. */
const whole = (rule: string, fits: (value: number) => boolean) =>
  number(`a whole number ${rule}`, (value) => Number.isSafeInteger(value) && fits(value));

const notNegative = number("a number of at least 0", (value) => value >= 0);
export const wholeAtLeast = (least: number) => whole(`of at least ${least}`, (value) => value >= least);
export const wholeFrom = (least: number, most: number) =>
  whole(`from ${least} to ${most}`, (value) => value >= least && value <= most);

export const probability = number("a number above 0 and at most 1", (value) => value > 0 && value <= 1);
export const atMostOne = number("a number from 0 to 1", (value) => value >= 0 && value <= 1);
/** @param least the smallest one above 0 that the engine supports */
export const temperatureFrom = (least: number) =>
  number(`0 (greedy) or a number of at least ${least}`, (value) => value === 0 || value >= least);
export const seed = whole("from 0 to 2^53 - 1", (value) => value >= 0);

const decay = number("a number of at least 0 and below 1", (value) => value >= 0 && value < 1);

export const adamParams = z.strictObject({
  learning_rate: notNegative,
  beta1: decay.default(0.9),
  beta2: decay.default(0.95),
  // The optimizer divides by it in float32, for instance where no gradient has arrived so far.
  eps: number("a number above 0, also in float32", (value) => Math.fround(value) > 0).default(1e-12),
  weight_decay: notNegative.default(0),
  grad_clip_norm: notNegative.default(0),
});

export const loraConfig = z.looseObject({
  /** A larger rank only exhausts memory: no model has matrices of a higher rank. */
  rank: wholeFrom(1, 16_384).default(32),
  /** Tinker's own clients do not send it; the scale is then 32 / rank. */
  alpha: number("a number above 0", (value) => value > 0).default(32),
  seed: seed.nullish(),
  train_unembed: z.boolean().default(true),
  train_mlp: z.boolean().default(true),
  train_attn: z.boolean().default(true),
});

// Names of checkpoints: `tinker://{run}/{kind}/{name}`.

export const checkpointKinds = {
  weights: "training",
  sampler_weights: "sampler",
  external_weights: "external",
} as const;
export type PathKind = keyof typeof checkpointKinds;

export interface TinkerPath {
  /** The saved model, `{session}:train:{number}`. */
  run: string;
  kind: PathKind;
  name: string;
}

export const formatTinkerPath = ({ run, kind, name }: TinkerPath): string => `tinker://${run}/${kind}/${name}`;

/** Whether the text names a checkpoint that a Tinker service holds. */
export const isTinkerPath = (text: string): boolean => text.startsWith("tinker://");

/** @throws UserError when the text is not such a path */
export function parseTinkerPath(path: string): TinkerPath {
  const parts = isTinkerPath(path) ? path.slice("tinker://".length).split("/") : [];
  const [run, kind, name] = parts;
  if (parts.length !== 3 || !run || !name || !isPathKind(kind)) {
    throw new UserError(
      `"${path}" is not the path of a checkpoint: tinker://<run>/weights/<name> or .../sampler_weights/<name>`,
    );
  }
  return { run, kind, name };
}

const isPathKind = (text: string | undefined): text is PathKind =>
  text !== undefined && Object.hasOwn(checkpointKinds, text);

/** @throws UserError when a checkpoint cannot have the name */
export function checkName(name: unknown): string {
  if (typeof name !== "string" || name === "" || name.length > 200) {
    throw new UserError("a checkpoint's name must have 1 to 200 characters");
  }
  // The name is part of a path of three segments and of a URL.
  if (/[/\\\s?#%\p{Cc}]/u.test(name) || name === "." || name === "..") {
    throw new UserError(`"${name}" cannot be the name of a checkpoint: remove slashes, spaces, and ? # %`);
  }
  return name;
}

/** @param otherModels whether the service may have other models, which are not trained */
export const engineCapabilities = (
  { exactLogprobs, imageTokens }: ServiceCapabilities,
  { otherModels }: { otherModels: boolean },
): Capabilities => ({
  engine: "tinker",
  // "processed" is the distribution at the sampling temperature; at temperature 1 that is the model's own.
  sampleLogprobs: exactLogprobs ? "raw" : "processed",
  adapters: ["lora", "none"],
  loraTargets: ["attn", "mlp", "unembed"],
  outputs: ["logprobs", "targets"],
  sampling: [
    "top_p",
    "top_k",
    "stop_ids",
    "stop_strings",
    "seed",
    "prompt_logprobs",
    "top_logprobs",
    "top_prompt_logprobs",
    "tempered_logprobs",
    "abort",
  ],
  multiplePolicies: true,
  otherModels,
  frozenSampler: { lora: true, full: false },
  exports: ["adapter"],
  images: imageTokens,
});
