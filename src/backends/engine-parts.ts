/**
 * What engines share: adapters, checks of losses and models, failures, published weights, and the engine composed of
 * several parts.
 */
import { randomUUID } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, statfsSync } from "node:fs";
import { join } from "node:path";
import type { LossValue, Outputs } from "../algorithms/types.ts";
import { createClosers } from "../base/closers.ts";
import { RunError, UserError } from "../base/errors.ts";
import { temporaryFolder } from "../base/files.ts";
import type { Config } from "../config/schema.ts";
import type { TokenOutputs } from "../trajectories/types.ts";
import {
  type AdapterSpec,
  type Capabilities,
  type Engine,
  type EnginePart,
  type Learner,
  type LearnerSpec,
  type LearningEngine,
  loraTargets,
  type ModelInfo,
  type Published,
  type SamplingParams,
  type SamplingPart,
  type ScoringPart,
} from "./engine.ts";

// The adapter a configuration asks for.

export function adapterSpec(config: Config): AdapterSpec {
  const { lora_rank: rank, lora_alpha: alpha, train_vision } = config.model;
  const { train_attn: attn, train_mlp: mlp, train_experts: experts, train_unembed: unembed } = config.model;
  const vision = train_vision ? ({ trainVision: true } as const) : {};
  if (rank === 0) return { kind: "full", ...vision };
  const trains = { attn, mlp, experts, unembed };
  const targets = loraTargets.filter((target) => trains[target]);
  return { kind: "lora", rank, alpha, targets, seed: config.rllm.trainer.seed, ...vision };
}

// Checks of a loss's value and gradient that all engines share.

/** A loss or gradient is NaN or infinite. The trainer may skip the step and count it. */
export class NonFiniteLossError extends RunError {
  override name = "NonFiniteLossError";

  constructor(message: string, options: { hint?: string; cause?: unknown } = {}) {
    super(message, { ...options, code: "non_finite_loss" });
  }
}

/**
 * @throws NonFiniteLossError when the value or its gradient is not finite
 * @throws RunError when the gradient and the outputs differ in length
 */
export function checkLossValue(name: string, { loss, gradient }: LossValue, outputs: TokenOutputs): void {
  for (const key of ["logprobs", "entropy", "values"] as const) {
    const part = gradient[key];
    if (part === undefined) continue;
    const expected = outputs[key]?.length;
    if (part.length !== expected) {
      const against = expected === undefined ? "an output that it did not request" : `${expected} ${key}`;
      throw new RunError(`the loss "${name}" returned a gradient of ${part.length} entries for ${against}`);
    }
    const bad = part.findIndex((entry) => !Number.isFinite(entry));
    if (bad >= 0) {
      throw new NonFiniteLossError(
        `the gradient of the loss "${name}" with respect to ${key}[${bad}] is ${part[bad]} (${key}[${bad}] is ${outputs[key]![bad]})`,
        { hint: nonFiniteHint },
      );
    }
  }
  if (!Number.isFinite(loss)) throw new NonFiniteLossError(`the loss "${name}" is ${loss}`, { hint: nonFiniteHint });
}

const nonFiniteHint =
  "Lower training.learning_rate, or check rewards and advantages of this step for values that are not finite.";

// Makes one engine of parts that train, sample and score.

export type EngineParts = {
  /** Default: the trainer's own. */
  scorers?: ScoringPart;
  /** Programs that the other parts need, and that are closed last. */
  programs?: readonly EnginePart[];
  /** Versions of further programs. */
  versions?: Engine["versions"];
  /** Default: the trainer's. */
  capabilities?: Capabilities;
  /** Why the samplers do not support images, although the trainer does. */
  imagesReason?: string | undefined;
} & ({ trainer: Engine; samplers?: undefined } | { trainer: LearningEngine; samplers: SamplingPart });

/** Counters of the same name are added. */
export function composeEngine(parts: EngineParts): Engine {
  const { trainer, samplers, scorers, programs = [], capabilities = trainer.capabilities } = parts;
  const { images, nccl, examine, memory } = trainer;
  const imagesReason = parts.imagesReason ?? trainer.imagesReason;
  const createScorer = scorers?.createScorer ?? trainer.createScorer;
  const all: EnginePart[] = [...programs, trainer];
  if (samplers) all.push(samplers);
  if (scorers) all.push(scorers);
  const deaths = all.flatMap(({ died }) => died ?? []);
  const closers = createClosers();
  for (const part of all) closers.add(() => part.close());
  return {
    capabilities: scorers ? withScores(capabilities) : capabilities,
    model: trainer.model,
    versions: { ...parts.versions, ...trainer.versions },
    ...(images && parts.imagesReason === undefined ? { images } : {}),
    ...(imagesReason === undefined ? {} : { imagesReason }),
    ...(nccl === undefined ? {} : { nccl }),
    ...(memory === undefined ? {} : { memory }),
    createPolicy: parts.samplers ? parts.samplers.createPolicy : parts.trainer.createPolicy,
    createLearner: trainer.createLearner,
    ...(createScorer ? { createScorer } : {}),
    ...(examine ? { examine } : {}),
    async stats() {
      const sums: Record<string, number> = {};
      const counters = await Promise.all(all.map(async (part) => (await part.stats?.()) ?? {}));
      for (const [name, value] of counters.flatMap(Object.entries<number>)) sums[name] = (sums[name] ?? 0) + value;
      return sums;
    },
    waitingFor: () => all.flatMap((part) => part.waitingFor?.() ?? []),
    ...(deaths.length > 0 ? { died: Promise.race(deaths) } : {}),
    close: closers.close,
  };
}

/** The capabilities of an engine that gets scorers. */
export function withScores(capabilities: Capabilities): Capabilities {
  const { outputs } = capabilities;
  return outputs.includes("scores") ? capabilities : { ...capabilities, outputs: [...outputs, "scores"] };
}

// Errors of an engine that died or lost a model's state.

/** The engine has ended, and everything in its memory is lost. */
export class EngineDied extends RunError {
  override name = "EngineDied";

  constructor(message: string, options: { details?: string | undefined; hint?: string; cause?: unknown } = {}) {
    super(message, { ...options, code: "engine_died" });
  }
}

/** The engine works, but lost the state of a model: a saved state can be loaded into a new policy. */
export class StateLost extends RunError {
  override name = "StateLost";

  constructor(message: string, options: { hint?: string; cause?: unknown } = {}) {
    super(message, { ...options, code: "state_lost" });
  }
}

/** The `StateLost` among an error and its causes. */
export function stateLostIn(error: unknown): StateLost | undefined {
  for (let each = error; each instanceof Error; each = each.cause) if (each instanceof StateLost) return each;
  return undefined;
}

// Which learners an engine can create, and which outputs they have. Shared by the engines.

/** @throws UserError when a critic is asked for anything but values, or a policy for values */
export function requireFitting({ head }: LearnerSpec, { entropy, values }: Outputs): void {
  if (head === "value") {
    if (values && !entropy) return;
    throw new UserError("a critic computes only values", { hint: "request { values: true }" });
  }
  if (!values) return;
  throw new UserError("this policy has no value head, so it cannot compute values", {
    hint: 'create a critic in addition: createLearner({ adapter, head: "value" })',
  });
}

/** @throws UserError when the engine does not declare such learners */
export function requireCreatable({ engine, otherModels, outputs }: Capabilities, { model, head }: LearnerSpec): void {
  if (model !== undefined && !otherModels) {
    throw new UserError(`the ${engine} engine has one model and cannot load "${model}" as well`, {
      hint: "use the run's own model",
    });
  }
  if (head === "value" && !outputs.includes("values")) {
    throw new UserError(`the ${engine} engine has no critics: it cannot add a value head`, {
      hint: "rllm/backend=local, or an estimator without a critic, e.g. rllm.algorithm.adv_estimator=rloo",
    });
  }
}

// Checks of published weights that the engines share.

/** @throws UserError when the weights are of another kind than this engine's */
export function idOf(published: Published): string {
  if (published.kind === "engine") return published.id;
  throw new UserError(`this engine's sampler cannot load weights of the kind "${published.kind}"`);
}

/** @throws RunError when a sampler is to load weights that another learner published */
export function requireOwn(published: Published, own: string): void {
  const id = idOf(published);
  if (id === own) return;
  throw new RunError(
    `version ${published.version} was published by another learner (${id}, not ${own}); this sampler cannot load it`,
  );
}

// The folders through which a run's weights reach a sampler in another process: one for each version.

type Kind = "adapter" | "weights";

/**
 * A learner that publishes folders. Names and paths never repeat, also over several processes: servers keep an adapter's
 * weights and the cached prefixes of its prompts by them.
 *
 * @param folder the server can read it by the same path
 */
export function publishingFolders(
  learner: Learner,
  kind: Kind,
  folder: string,
): { learner: Learner; first(): Promise<Published> } {
  const run = randomUUID().slice(0, 8);
  let count = 0;
  async function exportAs(version: number): Promise<Published> {
    const name = `hone-${run}-${++count}-v${version}`;
    const path = join(folder, name);
    mkdirSync(folder, { recursive: true });
    await learner.export(path, kind === "adapter" ? "adapter" : "merged");
    return { kind, version, name, path };
  }
  return {
    /** The weights before training. */
    first: () => exportAs(0),
    learner: {
      ...learner,
      publish: async () => exportAs((await learner.publish()).version),
      loadState: async (dir, options) => exportAs((await learner.loadState(dir, options)).version),
    },
  };
}

const sharedMemory = "/dev/shm";

/**
 * Where all weights are published: in memory if the sampler is on this machine and there is room, else in the run's folder.
 * A killed process leaves its folder in memory to the next one, which removes it.
 */
export function folderForWeights(
  runFolder: string,
  model: Pick<ModelInfo, "parameters" | "dtype">,
  isHere: boolean,
): string {
  const bytes = model.parameters * (model.dtype === "float32" ? 4 : 2);
  if (!isHere || !existsSync(sharedMemory)) return runFolder;
  const { bavail, bsize } = statfsSync(sharedMemory);
  // Two versions, while the sampler reads one of them into memory of its own.
  const fits = 2.1 * bytes < bavail * bsize && 4 * bytes < process.availableMemory();
  return fits ? temporaryFolder("hone-weights-", sharedMemory) : runFolder;
}

// Checks that two models have the same vocabulary, by their tokenizer.json.

type TokenizerModel = Pick<ModelInfo, "name" | "directory">;

/** @throws UserError if an id stands for different tokens */
export function requireSameVocabulary(model: TokenizerModel, other: TokenizerModel): void {
  const [own, others] = [vocabularyOf(model.directory), vocabularyOf(other.directory)];
  for (const id of new Set([...own.keys(), ...others.keys()])) {
    const [here, there] = [own.get(id), others.get(id)];
    if (here === there) continue;
    throw new UserError(
      `${other.name} has a different vocabulary from ${model.name}: token ${id} is ${shown(there)} instead of ${shown(here)}`,
      {
        hint: "a critic, reference or teacher reads the tokens of the run's own model, so it needs the same tokenizer",
      },
    );
  }
}

const shown = (token: string | undefined) => (token === undefined ? "absent" : JSON.stringify(token));

interface TokenizerFile {
  model: { vocab: Record<string, number> | [token: string, score: number][] };
  added_tokens?: { id: number; content: string }[];
}

/** The token of each id. */
function vocabularyOf(directory: string): Map<number, string> {
  const file = JSON.parse(readFileSync(join(directory, "tokenizer.json"), "utf8")) as TokenizerFile;
  const { vocab } = file.model;
  const found = new Map(
    Array.isArray(vocab)
      ? vocab.map(([token], id) => [id, token] as const)
      : Object.entries(vocab).map(([token, id]) => [id, token] as const),
  );
  for (const { id, content } of file.added_tokens ?? []) found.set(id, content);
  return found;
}

// Facts about sampling parameters that the engines share.

/** The model's own distribution. */
export const ownDistribution = { temperature: 1, topP: 1, topK: -1, minP: 0 };

/** One token of the model's own distribution. */
export const plainParams: SamplingParams = { ...ownDistribution, maxTokens: 1, stopIds: [], stopStrings: [], seed: 0 };

/** Whether temperature and filters make tokens more or less likely than the model does. */
export const changesDistribution = ({
  temperature,
  topP,
  topK,
  minP,
}: Pick<SamplingParams, "temperature" | "topP" | "topK" | "minP">): boolean =>
  temperature !== 1 || topP < 1 || topK > 0 || minP > 0;
