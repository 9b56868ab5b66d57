/** Messages of vLLM's `/inference/v1/generate`: requests as an engine takes them, and replies. */
import { randomInt } from "node:crypto";
import { z } from "zod";
import {
  type Engine,
  type LikelyTokens,
  leastTemperature,
  type Sample,
  type SampleRequest,
} from "../../backends/engine.ts";
import { atMostOne, probability, temperatureFrom, wholeAtLeast } from "../../backends/tinker/handshake.ts";
import { UserError } from "../../base/errors.ts";
import { zip } from "../../base/values.ts";
import { readBody } from "./http.ts";
import { requireKnown } from "./model-input.ts";

const count = wholeAtLeast(0);
const only = <T extends number>(value: T) => z.literal(value, `only ${value} is supported`).nullish();

/** Unknown fields are refused: ignoring one could change what the answer means. */
const schema = z.strictObject({
  request_id: z.string().min(1).max(512).nullish(),
  model: z.string().nullish(),
  token_ids: z.array(count).min(1),
  stream: z.boolean().nullish(),
  sampling_params: z
    .strictObject({
      n: only(1),
      max_tokens: wholeAtLeast(1).nullish(),
      temperature: temperatureFrom(leastTemperature).default(1),
      top_p: probability.default(1),
      top_k: wholeAtLeast(-1).default(0),
      min_p: atMostOne.default(0),
      // As in vLLM, -1 is none.
      seed: wholeAtLeast(-1).nullish(),
      stop: z.union([z.string(), z.array(z.string())]).nullish(),
      stop_token_ids: z.array(count).nullish(),
      ignore_eos: z.boolean().default(false),
      logprobs: count.nullish(),
      prompt_logprobs: count.nullish(),
      repetition_penalty: only(1),
      presence_penalty: only(0),
      frequency_penalty: only(0),
      min_tokens: only(0),
      // They change only text, which the answer does not have.
      detokenize: z.boolean().nullish(),
      skip_special_tokens: z.boolean().nullish(),
      spaces_between_special_tokens: z.boolean().nullish(),
      include_stop_str_in_output: z.boolean().nullish(),
    })
    .prefault({}),
  priority: only(0),
  output_mode: z.literal("tokens", 'only "tokens" is supported').nullish(),
});

export interface GenerateCall {
  id: string | undefined;
  /** The base model or checkpoint; undefined for the first base model. */
  model: string | undefined;
  stream: boolean;
  /** Whether the answer has log-probabilities. */
  logprobs: boolean;
  request(engine: Pick<Engine, "model" | "capabilities">): SampleRequest;
}

/** @throws UserError that says what is wrong with the request */
export function readGenerateCall(body: unknown): GenerateCall {
  const { sampling_params: params, token_ids: tokens, ...rest } = readBody(schema, body);
  const { seed = null } = params;
  const stop = typeof params.stop === "string" ? [params.stop] : (params.stop ?? []);
  if (stop.includes("")) throw new UserError("stop: an empty text would end every sequence");
  return {
    id: rest.request_id ?? undefined,
    model: rest.model ?? undefined,
    stream: rest.stream === true,
    logprobs: typeof params.logprobs === "number",
    request({ model, capabilities }) {
      const stopIds = params.stop_token_ids ?? [];
      requireKnown(tokens, model, "token_ids");
      requireKnown(stopIds, model, "sampling_params.stop_token_ids");
      const { logprobs = null } = params;
      if (logprobs !== null) requireFew("logprobs", logprobs, model);
      const room = model.maxLength - tokens.length;
      const maxTokens = params.max_tokens ?? Math.min(room, 2 ** 31 - 1);
      if (room < 1 || maxTokens > room) {
        throw new UserError(
          `a prompt of ${tokens.length} tokens and max_tokens=${Math.max(1, maxTokens)}: the model's limit is ${model.maxLength} together`,
        );
      }
      const request: SampleRequest = {
        prompt: Int32Array.from(tokens),
        params: {
          maxTokens,
          temperature: params.temperature,
          topP: params.top_p,
          topK: params.top_k === 0 ? -1 : params.top_k,
          minP: params.min_p,
          stopIds,
          stopStrings: stop,
          ignoreEos: params.ignore_eos,
          seed: seed === null || seed === -1 ? randomInt(2 ** 47) : seed,
        },
        promptLogprobs: typeof params.prompt_logprobs === "number",
        topLogprobs: logprobs ?? 0,
      };
      const { prompt_logprobs: top = null } = params;
      if (top !== null && top > 0) request.topPromptLogprobs = requireFew("prompt_logprobs", top, model);
      if (request.topPromptLogprobs !== undefined && !capabilities.outputs.includes("most_likely")) {
        throw new UserError(`the ${capabilities.engine} does not support prompt_logprobs above 0`);
      }
      refuseMissing(request, capabilities.sampling, capabilities.engine);
      return request;
    },
  };
}

function requireFew(name: string, wanted: number, { vocabularySize: size }: Engine["model"]): number {
  if (wanted <= size) return wanted;
  throw new UserError(`${name} is ${wanted}, but the vocabulary has ${size} tokens`);
}

function refuseMissing(
  { params, promptLogprobs, topLogprobs = 0 }: SampleRequest,
  sampling: Engine["capabilities"]["sampling"],
  engine: string,
): void {
  const used: Partial<Record<(typeof sampling)[number], boolean>> = {
    top_p: params.topP < 1,
    top_k: params.topK > 0,
    min_p: params.minP > 0,
    stop_strings: params.stopStrings.length > 0,
    prompt_logprobs: promptLogprobs === true,
    top_logprobs: topLogprobs > 0,
  };
  for (const name of sampling) delete used[name];
  const [missing] = Object.entries(used).find(([, isUsed]) => isUsed) ?? [];
  if (missing !== undefined) throw new UserError(`the ${engine} does not support ${missing}`);
}

// Replies in the form of vLLM's `/inference/v1/generate`.

const reasons = { stop: "stop", length: "length", aborted: "abort" } as const;

export interface ReplyHead {
  request_id: string;
  created: number;
  model: string;
}

export function toReply(head: ReplyHead, prompt: Int32Array, sample: Sample, logprobs: boolean): object {
  const { tokens, promptLogprobs, topPromptLogprobs, stopReason } = sample;
  return {
    ...head,
    choices: [
      {
        index: 0,
        token_ids: [...tokens],
        logprobs: logprobs ? { content: contentOf(sample) } : null,
        finish_reason: reasons[stopReason],
        weight_versions: versionSpans(sample),
      },
    ],
    prompt_logprobs: promptLogprobs
      ? Array.from(promptLogprobs, (logprob, at) =>
          at === 0 ? null : { ...likely(topPromptLogprobs?.[at]), [prompt[at]!]: { logprob } },
        )
      : null,
    usage: {
      prompt_tokens: prompt.length,
      completion_tokens: tokens.length,
      total_tokens: prompt.length + tokens.length,
    },
  };
}

const likely = ({ tokens, logprobs }: LikelyTokens = { tokens: new Int32Array(), logprobs: new Float32Array() }) =>
  Object.fromEntries(zip(tokens, logprobs).map(([token, logprob]) => [token, { logprob }]));

/** One event of a stream: a token. */
export const toEvent = (head: ReplyHead, token: number, logprob: number, logprobs: boolean): object => ({
  ...head,
  choices: [
    {
      index: 0,
      token_ids: [token],
      logprobs: logprobs ? { content: [{ token_id: token, logprob, top_logprobs: [] }] } : null,
      finish_reason: null,
    },
  ],
});

/** The last event of a stream: the tokens that were not streamed, and how the reply ended. */
export function toLastEvent(head: ReplyHead, sample: Sample, streamed: number, logprobs: boolean): object {
  return {
    ...head,
    choices: [
      {
        index: 0,
        token_ids: [...sample.tokens.subarray(streamed)],
        logprobs: logprobs ? { content: contentOf(sample).slice(streamed) } : null,
        finish_reason: reasons[sample.stopReason],
        weight_versions: versionSpans(sample),
      },
    ],
  };
}

/** The sampled token comes first among the likely ones. */
const contentOf = ({ tokens, logprobs, topLogprobs }: Sample) =>
  zip(tokens, logprobs).map(([token, logprob], at) => {
    const own = { token_id: token, logprob };
    const { tokens: likely = [], logprobs: others = [] } = topLogprobs?.[at] ?? {};
    const listed = zip(likely, others).map(([token_id, logprob]) => ({ token_id, logprob }));
    return { ...own, top_logprobs: [own, ...listed.filter(({ token_id }) => token_id !== token)] };
  });

/** First to last and without a gap. */
function versionSpans({ tokens, tokenVersions, policyVersion }: Sample) {
  const spans: { version: string; start: number; end: number }[] = [];
  for (let at = 0; at < tokens.length; at++) {
    const version = String(tokenVersions?.[at] ?? policyVersion);
    const last = spans.at(-1);
    if (last?.version === version) last.end = at + 1;
    else spans.push({ version, start: at, end: at + 1 });
  }
  return spans;
}
