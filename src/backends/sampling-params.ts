/** Facts about sampling parameters that the engines share. */
import type { SamplingParams } from "./engine.ts";

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
