/** The parameters that OpenAI's two completion APIs and their extensions by inference servers have in common. */
import { isTemperature, leastTemperature } from "../../backends/engine.ts";
import type { GenerateParams } from "../../rollout/generate.ts";
import {
  type Body,
  badParameter,
  type Rule,
  readBoolean,
  readIntegers,
  readNumber,
  readStrings,
} from "../read-parameters.ts";

const noEngine = "no engine of Hone's samples so, and the recorded log-probabilities would be of another distribution";
const noBearing = "it has no bearing on what is sampled";

export const commonRules = {
  model: "used",
  stream: "used",
  stream_options: "used",
  n: "used",
  stop: "used",
  seed: "used",
  max_tokens: "used",
  temperature: "used",
  top_p: "used",
  top_k: "used",
  min_p: "used",
  logprobs: "used",
  stop_token_ids: "used",
  ignore_eos: "used",
  return_token_ids: "used",
  metadata: "used",
  frequency_penalty: { refused: noEngine, unless: [0] },
  presence_penalty: { refused: noEngine, unless: [0] },
  repetition_penalty: { refused: noEngine, unless: [1] },
  length_penalty: { refused: noEngine, unless: [1] },
  logit_bias: { refused: noEngine, unless: [{}] },
  min_tokens: { refused: noEngine, unless: [0] },
  skip_special_tokens: { refused: "special tokens are always left out of the text", unless: [true] },
  user: { ignored: noBearing },
  store: { ignored: "calls are stored as the gateway is set up" },
  service_tier: { ignored: noBearing },
  safety_identifier: { ignored: noBearing },
  prompt_cache_key: { ignored: noBearing },
  prompt_cache_retention: { ignored: noBearing },
} satisfies Record<string, Rule>;

export function readTemperature(body: Body, max: number): number | undefined {
  const temperature = readNumber(body, "temperature", { min: 0, max });
  if (temperature === undefined || isTemperature(temperature)) return temperature;
  throw badParameter(
    "temperature",
    `temperature must be 0 (greedy) or at least ${leastTemperature}; it is ${temperature}`,
  );
}

export function readSampling(body: Body, maxTokens: number | undefined): GenerateParams {
  const temperature = readTemperature(body, 100);
  const topP = readNumber(body, "top_p", { min: 0, max: 1 });
  const topK = readNumber(body, "top_k", { min: -1, integer: true });
  const minP = readNumber(body, "min_p", { min: 0, max: 1 });
  const seed = readNumber(body, "seed", { integer: true });
  const stop = readStrings(body, "stop");
  const stopIds = readIntegers(body, "stop_token_ids");
  const ignoreEos = readBoolean(body, "ignore_eos");
  const params: GenerateParams = {};
  if (maxTokens !== undefined) params.maxTokens = maxTokens;
  if (temperature !== undefined) params.temperature = temperature;
  if (topP !== undefined) params.topP = topP;
  // Servers spell "off" as 0 or as -1.
  if (topK !== undefined) params.topK = topK === 0 ? -1 : topK;
  if (minP !== undefined) params.minP = minP;
  // Engines take 32 bits.
  if (seed !== undefined) params.seed = seed >>> 0;
  if (stop !== undefined) params.stop = stop;
  if (stopIds !== undefined) params.stopIds = stopIds;
  if (ignoreEos !== undefined) params.ignoreEos = ignoreEos;
  return params;
}
