/**
 * The interface between reinforcement learning and tensor arithmetic. An engine does not know algorithms: it returns token
 * outputs and propagates a loss's gradient with respect to them back into the weights (a vector-Jacobian product).
 *
 * A learner computes outputs and gradients and changes the weights; a sampler samples from weights that a learner has published. They are
 * separate, because samples and gradients may come from different programs: a vLLM server is a sampler without a learner, a critic or
 * a reference a learner without a sampler. Weights move in one place, `sampler.load(await learner.publish())`. The learner counts
 * versions: `publish` freezes the current weights under the next one, and every sampled token carries the version that sampled it.
 * Log-probabilities are a property of the sampler: `raw` ones are the model's own, `processed` ones those of the distribution after
 * temperature and filters (SGLang by default, vLLM with `--logprobs-mode processed_logprobs`, Tinker's service); such samples are marked.
 */
import type { Loss, LossValue, Outputs } from "../algorithms/types.ts";
import type { Media, MediaStore, StoredImage } from "../images/images.ts";
import type { RoutingPart, Sequence, TokenOutputs } from "../trajectories/types.ts";

/** The image support of an engine's model. */
export interface EngineImages {
  /** The placeholder that the model's chat template writes for an image, a single token. */
  readonly placeholder: { text: string; id: number };
  /**
   * Returns the tokens of each image in prompts, `[images]`. Required before a prompt with the image can be used.
   * @throws UserError if an image cannot be decoded; the signal's reason, after it has ended the decoding
   */
  tokensOf(images: readonly StoredImage[], signal?: AbortSignal): Promise<Int32Array[]>;
  /** The store of the images. */
  readonly store: MediaStore;
  /** Hashes of images with transparent pixels, among those whose tokens were requested. Absent if unknown. */
  readonly transparent?: ReadonlySet<string>;
}

/** What LoRA adapts: `experts` are the weights of the experts of a mixture, `mlp` all other feed-forward layers. */
export const loraTargets = ["attn", "mlp", "experts", "unembed"] as const;
type LoraTarget = (typeof loraTargets)[number];

/** The capabilities of an engine as data, for the checks before a run. */
export interface Capabilities {
  engine: string;
  /** The value of `Sampler.logprobs`. */
  sampleLogprobs: "raw" | "processed";
  adapters: readonly ("lora" | "full" | "none")[];
  loraTargets: readonly LoraTarget[];
  /**
   * `values`: learners with a value head (`LearnerSpec.head`); `targets`: outputs of any token at a position
   * (`Sequence.targets`); `most_likely`: `Learner.mostLikely`; `draws`: `Learner.draws`; `scores`: `Engine.createScorer`.
   */
  outputs: readonly (
    | "logprobs"
    | "entropy"
    | "values"
    | "concentration"
    | "targets"
    | "most_likely"
    | "draws"
    | "scores"
  )[];
  sampling: readonly (
    | "top_p"
    | "top_k"
    | "min_p"
    | "stop_ids"
    | "stop_strings"
    | "seed"
    | "prompt_logprobs"
    | "top_logprobs"
    | "top_prompt_logprobs"
    | "tempered_logprobs"
    | "abort"
    | "tokens_streamed"
  )[];
  /** Several trainable adapters over one base model at once. */
  multiplePolicies: boolean;
  /** Learners over another model than the engine's (`LearnerSpec.model`). */
  otherModels: boolean;
  /** By adapter: whether samples come from the last published weights even after an `optimStep`. */
  frozenSampler: Readonly<Record<"lora" | "full", boolean>>;
  exports: readonly ("adapter" | "merged")[];
  /** Whether prompts and sequences may have images, if the model supports them (`Engine.images`). */
  images: boolean;
  /** Whether it can also train the vision part (`trainVision` of adapters). */
  trainsVision?: boolean;
  /** How training can repeat the routing of a mixture of experts. */
  routerReplay?: readonly ("R2" | "R3")[];
}

export type AdapterSpec =
  | ({
      kind: "lora";
      rank: number;
      alpha: number;
      targets: readonly LoraTarget[];
      seed: number;
    } & TrainsVision)
  | ({ kind: "full" } & TrainsVision)
  /** The base model, which is not trained: for a reference or an evaluation. */
  | { kind: "none" };

interface TrainsVision {
  /** Also adapt the vision part of a model that supports images (`Engine.images`). */
  trainVision?: true;
}

export interface PolicySpec {
  adapter: AdapterSpec;
}

export interface LearnerSpec extends PolicySpec {
  /**
   * Another model than the engine's, with the same vocabulary, for a critic or a reference; requires
   * `Capabilities.otherModels`.
   */
  model?: string;
  /**
   * `value` makes a critic: over the adapted model one value per position instead of a distribution. Before the first
   * step it is 0 everywhere, unless the model's files have a value head, such as a reward model's. Each value is that of the state before the trained token, and the only output: `logprobs` are
   * empty. A critic cannot be exported; its head is trained and saved with the adapter.
   */
  head?: "value";
}

/** A model that a run opens beside its policy. */
export interface OtherModel extends LearnerSpec {
  role: "critic" | "reference model" | "teacher" | "reward model";
}

/** The smallest temperature above 0 (greedy). Division by a smaller one loses too much precision and overflows. */
export const leastTemperature = 0.01;

export const isTemperature = (value: number): boolean => value === 0 || value >= leastTemperature;

export interface SamplingParams {
  maxTokens: number;
  /** 0 = greedy. */
  temperature: number;
  /** 1 = off. */
  topP: number;
  /** -1 = off. */
  topK: number;
  /** 0 = off. */
  minP: number;
  /** Sampling one of these ends the sequence, and the token is kept. So do the model's own end tokens, unless `ignoreEos`. */
  stopIds: readonly number[];
  /** A sequence ends when its decoded text contains one of these; the tokens that complete it are kept. */
  stopStrings: readonly string[];
  ignoreEos?: boolean;
  /** Up to rounding, a sample depends only on weights, prompt, parameters and seed, not on the rest of the batch. */
  seed: number;
}

export interface SampleRequest {
  /** `[P]`, P >= 1. Equal prompts within one call are prefilled once. */
  prompt: Int32Array;
  /** The images within the prompt, in order; see `Engine.images`. */
  media?: readonly Media[];
  params: SamplingParams;
  /** Also return the log-probability of each prompt token except the first. */
  promptLogprobs?: boolean;
  /** Also return the k most likely tokens at each sampled position. */
  topLogprobs?: number;
  /** Also return the k most likely tokens at each position of the prompt, except the first. */
  topPromptLogprobs?: number;
  /** Also return the experts of each token from this position on, except the last. For engines with `routerReplay` R3. */
  routingFrom?: number;
  /** Return log-probabilities at the sampling temperature, without filters; greedy counts as temperature 1. */
  temperedLogprobs?: boolean;
  /** Equal for requests whose prompts continue each other, such as the turns of a rollout. */
  session?: object;
  /**
   * Ends only this sequence, with `stopReason: "aborted"`. An engine that can only end a whole call
   * (`SampleOptions.signal`) may continue to sample it.
   */
  signal?: AbortSignal;
}

export interface Sample {
  /** Index of the request in its call. */
  request: number;
  /** `[T]` */
  tokens: Int32Array;
  /** `[T]` */
  logprobs: Float32Array;
  /** The log-probabilities are of the distribution after temperature and filters, not of the model's own. */
  processed?: true;
  stopReason: "stop" | "length" | "aborted";
  /** Version of the weights that the last token was sampled with. */
  policyVersion: number;
  /** `[T]` version of each token's weights, where new weights were published while the sequence was sampled. */
  tokenVersions?: Int32Array;
  /** The experts of prompt and reply, if they were requested. */
  routing?: readonly RoutingPart[];
  /** `[P]`, the first is NaN. */
  promptLogprobs?: Float32Array;
  /** `[T][k]`, most likely first. */
  topLogprobs?: LikelyTokens[];
  /** `[P][k]`, most likely first; none for the first token. */
  topPromptLogprobs?: LikelyTokens[];
}

export interface LikelyTokens {
  tokens: Int32Array;
  logprobs: Float32Array;
}

export interface SampleOptions {
  /** Aborting ends the call's sequences: each returns its tokens so far with `stopReason: "aborted"`. */
  signal?: AbortSignal;
  /** Called for each sampled token. Costs one message per decode step, so use it only to show text as it appears. */
  onToken?: (request: number, token: number, logprob: number) => void;
}

export interface AdamParams {
  learningRate: number;
  beta1: number;
  beta2: number;
  eps: number;
  /** Decoupled weight decay (AdamW). */
  weightDecay: number;
  /** Clip the global norm of the gradient to this; 0 = off. */
  maxGradNorm: number;
}

export interface ForwardBackwardResult extends Omit<LossValue, "gradient"> {
  outputs: TokenOutputs;
}

export interface StepResult {
  /** The gradient norm before clipping; NaN if the engine does not report it. */
  gradNorm: number;
  applied: boolean;
  /** The share of the weights' change that was lost to rounding; undefined if not reported. */
  lostToRounding?: number;
}

/** Tokens and their log-probabilities, `count` for each output, row by row. */
export interface TokenRows {
  tokens: Int32Array;
  logprobs: Float32Array;
  count: number;
}

/**
 * Weights that a learner has published, for samplers to load. `engine`: the engine keeps them and its own samplers find
 * them by `id`. `adapter`: a folder with PEFT's files, `weights`: a Hugging Face model directory; nobody changes them, and
 * `name` is unique. `collective`: the sampler's server receives them from the learner's GPU, until the next `optimStep`.
 */
export type Published = {
  /** Counted by the learner, from 1; a sampler that has loaded nothing has version 0, the weights it was opened with. */
  version: number;
} & (
  | { kind: "engine"; id: string }
  | { kind: "adapter" | "weights"; name: string; path: string }
  | { kind: "collective"; group: WeightGroup }
);

/** A group of processes to which a learner broadcasts all its weights: inference servers on other GPUs. */
export interface WeightGroup {
  /** The id that other members need to join: NCCL's unique id in base64. */
  readonly id: string;
  /** Number of processes; the learner has rank 0. */
  readonly size: number;
  /** The weights that `send` broadcasts, in this order. */
  readonly weights: { names: readonly string[]; dtypes: readonly string[]; shapes: readonly (readonly number[])[] };
  /** Returns when all other members have joined. */
  join(): Promise<void>;
  /**
   * Broadcasts the current weights; they must be the published ones.
   * @throws RunError if another member does not receive them
   */
  send(): Promise<void>;
}

/** Samples from published weights. */
export interface Sampler {
  /** Version of the loaded weights. */
  readonly version: number;
  /**
   * The distribution of a sample's log-probabilities. `raw`: the model's own, regardless of the sampling parameters.
   * `processed`: after temperature and filters; such samples are marked.
   */
  readonly logprobs: "raw" | "processed";
  /** Each request is sent alone and fails alone, because batching does not make this sampler faster. */
  readonly separate?: boolean;
  /** The longest sequence in tokens, if it has a limit besides the model's. */
  readonly maxLength?: number;
  /** The inference servers that sample, and how they get weights; absent if the engine's own process samples. */
  readonly servers?: string;
  /** Yields each sample as its sequence finishes, in no fixed order. */
  sample(requests: readonly SampleRequest[], options?: SampleOptions): AsyncIterable<Sample>;
  /**
   * Loads these weights for later samples. `sampler.load(await learner.publish())` is the only place where weights move.
   * @throws UserError when the sampler cannot load this kind
   */
  load(published: Published): Promise<void>;
  /** Frees memory while the learner trains. Absent if there is nothing to free. No sample may be running. */
  sleep?(): Promise<void>;
  /** Undoes `sleep`. Call `load` before the next sample. */
  wake?(): Promise<void>;
  close(): Promise<void>;
}

/** Computes outputs and gradients and changes the weights. Counts the versions that it publishes. */
export interface Learner {
  /** The longest sequence in tokens, if it has another model than the engine's (`LearnerSpec.model`). */
  readonly maxLength?: number;
  /** Outputs under the current (trained, not necessarily published) weights; keeps no graph. */
  forward(sequences: readonly Sequence[], outputs: Outputs): Promise<TokenOutputs>;
  /**
   * The `count` most likely tokens at each output's position under the current weights, most likely first. For engines
   * whose `outputs` name "most_likely".
   */
  mostLikely?(sequences: readonly Sequence[], count: number): Promise<TokenRows>;
  /**
   * `count` tokens drawn independently at each output's position under the current weights, at `temperature` (0: the
   * most likely) and without filters, with their log-probabilities at temperature 1. The same seed draws the same. For
   * engines whose `outputs` name "draws".
   */
  draws?(
    sequences: readonly Sequence[],
    options: { count: number; temperature: number; seed: number },
  ): Promise<TokenRows>;
  /** Accumulates gradients. Sequences must be those the loss was built for, in the same order. */
  forwardBackward(sequences: readonly Sequence[], loss: Loss): Promise<ForwardBackwardResult>;
  /**
   * Applies and clears the accumulated gradient. A gradient that is not finite is dropped: `applied: false`,
   * weights and optimizer untouched.
   */
  optimStep(adam: AdamParams): Promise<StepResult>;
  /**
   * `forwardBackward` and `optimStep`, sent together without waiting for the first answer. For remote engines, where this
   * saves time. A gradient that is not finite is dropped here too.
   */
  trainStep?(
    sequences: readonly Sequence[],
    loss: Loss,
    adam: AdamParams,
  ): Promise<{ result: ForwardBackwardResult; step: StepResult }>;
  /** Drops accumulated gradients. */
  zeroGrad(): Promise<void>;
  /**
   * Freezes the current weights under the next version. An engine that holds one copy of all weights
   * (`Capabilities.frozenSampler`) lets its own sampler see later changes.
   */
  publish(): Promise<Published>;
  /**
   * Weights and optimizer into `dir` (which must not exist): complete, atomic, only safetensors and JSON.
   * `optimizer: false` leaves the optimizer out, as if no step had been taken.
   */
  saveState(dir: string, options?: { optimizer: boolean }): Promise<void>;
  /**
   * Restores a saved state and publishes it under the version that it was saved with, for the sampler to load. Without
   * `optimizer` the optimizer starts fresh.
   */
  loadState(dir: string, options: { optimizer: boolean }): Promise<Published>;
  /** `adapter`: PEFT's files; `merged`: a Hugging Face model directory with tokenizer. */
  export(dir: string, as: "adapter" | "merged"): Promise<void>;
  /** Deletes the data that `saveState` stores outside of `dir`. Absent if it stores nothing there. */
  forgetState?(dir: string): Promise<void>;
  /** Opens a group of `size` processes for all weights, by NCCL. Absent if the engine cannot broadcast. */
  openGroup?(size: number): Promise<WeightGroup>;
  /** Frees the weights, and closes the sampler that was created with this learner. */
  close(): Promise<void>;
}

/** A frozen model that a policy learns from, with the same vocabulary. */
export interface Teacher {
  /** The longest sequence in tokens; absent: the policy's. */
  readonly maxLength?: number | undefined;
  /** Number of requests that were repeated since it was opened; absent: it does not repeat any. */
  readonly retries?: number;
  /** `[N]` log-probabilities of the outputs of sequences (without `targets`), in order. */
  logprobs(sequences: readonly Sequence[]): Promise<Float32Array>;
  /** The `count` most likely tokens at each output's position, most likely first. Absent if it cannot tell. */
  mostLikely?(sequences: readonly Sequence[], count: number): Promise<TokenRows>;
}

/** One set of weights in an engine: the learner that trains them, and a sampler for the weights that it publishes. */
export interface Policy {
  readonly sampler: Sampler;
  readonly learner: Learner;
}

export interface ScoreMoments {
  mean: number;
  /** Above 0. */
  std: number;
}

/** A frozen model that gives each sequence one number, such as a reward model. */
export interface Scorer {
  readonly model: Pick<ModelInfo, "name" | "directory" | "maxLength">;
  /** Mean and standard deviation of its scores on its own data, if its files store them, as OpenRLHF's do. */
  readonly moments?: ScoreMoments;
  /** Number of repeated requests to its servers since the start; absent without servers. */
  readonly retries?: number;
  /** Returns `[S]`, the score of each sequence at its last token. */
  score(sequences: readonly Int32Array[]): Promise<Float32Array>;
}

export interface ModelInfo {
  /** The name the user gave. */
  name: string;
  /** Directory that holds tokenizer.json, tokenizer_config.json and config.json of the model. */
  directory: string;
  architecture: string;
  parameters: number;
  vocabularySize: number;
  /** The longest sequence in tokens. A run's limit can be lower: see `Sampler.maxLength` and `Learner.maxLength`. */
  maxLength: number;
  eosTokenIds: readonly number[];
  dtype: string;
  device: string;
  /** How attention runs: `packed`, or `padded`. */
  attention: "packed" | "padded";
  attentionReason?: string;
}

/** One line of `hone doctor`. */
export interface Finding {
  name: string;
  detail: string;
  /** What to do about it, if something is wrong. */
  fix?: string;
}

/** A process or a group of servers that an engine consists of. */
export interface EnginePart {
  /** Memory and work counters for the metrics, e.g. `{"memory/peak_rss_bytes": ...}`. */
  stats?(): Promise<Record<string, number>>;
  /** Operations in progress, the longest silent first; for the progress line. */
  waitingFor?(): { what: string; seconds: number }[];
  /** Resolves with the reason when it has ended, by itself or by `close`; absent if that cannot be detected. */
  readonly died?: Promise<Error>;
  close(): Promise<void>;
}

export interface Engine extends EnginePart {
  readonly capabilities: Capabilities;
  readonly model: ModelInfo;
  /** Versions of its programs by name, e.g. `{"torch": "2.15.0"}`, for finding defects. */
  readonly versions: Readonly<Record<string, string>>;
  /** The memory that training takes, if the engine was opened to train and knows it. */
  readonly memory?: { text: string; fits: boolean };
  /** Absent if its model reads only text. */
  readonly images?: EngineImages;
  /** Why images are not supported, as a clause, if the model's configuration has a vision part. */
  readonly imagesReason?: string;
  /** The NCCL library that its learners broadcast with; absent if they cannot. */
  readonly nccl?: string;
  createPolicy(spec: PolicySpec): Promise<Policy>;
  /** A learner without a sampler: a critic, or a reference to compare with. */
  createLearner(spec: LearnerSpec): Promise<Learner>;
  /**
   * Loads a reward model (see `rllm.reward.model`) beside the engine's model; it is closed with the engine. For engines
   * whose `outputs` name "scores".
   */
  createScorer?(model: string): Promise<Scorer>;
  /** For `hone doctor`: checks that the training processes use the run's settings. Absent if this is not checked. */
  examine?(): Promise<Finding[]>;
  stats(): Promise<Record<string, number>>;
  waitingFor(): { what: string; seconds: number }[];
}

/** An engine without samplers of its own. */
export type LearningEngine = Omit<Engine, "createPolicy"> & {
  createPolicy(spec: PolicySpec): Promise<Pick<Policy, "learner">>;
};

/** Samplers for a learning engine, such as inference servers. `composeEngine` adds them. */
export interface SamplingPart extends EnginePart {
  /** A policy of the learning engine, with a sampler that gets its weights. */
  createPolicy(spec: PolicySpec): Promise<Policy>;
}

/** Reward models beside an engine. `composeEngine` adds them. */
export interface ScoringPart extends EnginePart {
  createScorer(model: string): Promise<Scorer>;
}
