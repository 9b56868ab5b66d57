/** Makes one engine of parts that train, sample and score. */
import { createClosers } from "../closers.ts";
import type { Capabilities, Engine, EnginePart, LearningEngine, SamplingPart, ScoringPart } from "./engine.ts";

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
