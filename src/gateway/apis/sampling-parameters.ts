/** The sampling parameters of all APIs and of the extensions by inference servers. */
import { isTemperature, leastTemperature } from "../../backends/engine.ts";
import type { GenerateParams } from "../../rollout/session/types.ts";
import {
  type Body,
  badParameter,
  noEffect,
  type Rule,
  readBoolean,
  readIntegers,
  readNumber,
  readStrings,
  used,
} from "../requests/read-parameters.ts";

const noEngine = "Hone's engines cannot sample so, and the recorded log-probabilities would not be the policy's";

export const storedAsConfigured: Rule = { ignored: "the gateway's configuration decides which calls are stored" };

/** The rules of OpenAI's two completion APIs. */
export const commonRules: Readonly<Record<string, Rule>> = {
  ...used("model stream stream_options n stop seed max_tokens temperature top_p top_k min_p logprobs stop_token_ids"),
  ...used("ignore_eos return_token_ids metadata"),
  frequency_penalty: { refused: noEngine, unless: [0] },
  presence_penalty: { refused: noEngine, unless: [0] },
  repetition_penalty: { refused: noEngine, unless: [1] },
  length_penalty: { refused: noEngine, unless: [1] },
  logit_bias: { refused: noEngine, unless: [{}] },
  min_tokens: { refused: noEngine, unless: [0] },
  skip_special_tokens: { refused: "special tokens are never part of the text", unless: [true] },
  user: { ignored: noEffect },
  store: storedAsConfigured,
  service_tier: { ignored: noEffect },
  safety_identifier: { ignored: noEffect },
  prompt_cache_key: { ignored: noEffect },
  prompt_cache_retention: { ignored: noEffect },
};

/** Each is searched for at each token. */
const maxStops = 100;

export const readMaxTokens = (body: Body, name: string) => readNumber(body, name, { min: 1, integer: true });

/** @param stop the parameter with the stop strings */
export function readSampling(
  body: Body,
  maxTokens: number | undefined,
  { maxTemperature = 100, stop = "stop" } = {},
): GenerateParams {
  const temperature = readNumber(body, "temperature", { min: 0, max: maxTemperature });
  if (temperature !== undefined && !isTemperature(temperature)) {
    throw badParameter(
      "temperature",
      `temperature must be 0 (greedy) or at least ${leastTemperature}; it is ${temperature}`,
    );
  }
  const topK = readNumber(body, "top_k", { min: -1, integer: true });
  const seed = readNumber(body, "seed", { integer: true });
  const stops = readStrings(body, stop);
  if (stops !== undefined && stops.length > maxStops) {
    throw badParameter(stop, `${stop} has ${stops.length} strings; at most ${maxStops} are supported`);
  }
  const params: { [Name in keyof GenerateParams]: GenerateParams[Name] | undefined } = {
    maxTokens,
    temperature,
    topP: readNumber(body, "top_p", { min: 0, max: 1 }),
    // Servers write "off" as 0 or as -1.
    topK: topK === 0 ? -1 : topK,
    minP: readNumber(body, "min_p", { min: 0, max: 1 }),
    // Engines take 32 bits.
    seed: seed === undefined ? undefined : seed >>> 0,
    stop: stops,
    stopIds: readIntegers(body, "stop_token_ids"),
    ignoreEos: readBoolean(body, "ignore_eos"),
  };
  return Object.fromEntries(Object.entries(params).filter(([, value]) => value !== undefined));
}
