/** Facts about sampling parameters that the engines share. */
import type { SamplingParams } from "./engine.ts";

/** Whether temperature and filters make tokens more or less likely than the model does. */
export const changesDistribution = ({
  temperature,
  topP,
  topK,
  minP,
}: Pick<SamplingParams, "temperature" | "topP" | "topK" | "minP">): boolean =>
  temperature !== 1 || topP < 1 || topK > 0 || minP > 0;
