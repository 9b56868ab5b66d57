/** vLLM: `/v1/completions` and `/inference/v1/generate` with token ids. */
import { fetch } from "undici";
import { RunError, UserError } from "../../base/errors.ts";
import { reasonOf } from "../../base/http.ts";
import { isObject } from "../../base/values.ts";
import type { LikelyTokens, SampleRequest } from "../engine.ts";
import {
  type Dialect,
  MissingTokens,
  readVersions,
  type ServerReply,
  toLogprobs,
  toStopReason,
  toVersion,
} from "./dialect.ts";
import { type Server, ServerFailed } from "./group.ts";
import { requireSamePrompt } from "./requests.ts";

// vLLM's `/v1/completions` with token ids: `prompt` as ids in, `token_ids` out (`return_token_ids`).

export const vllmCompletions: Dialect = {
  path: "/v1/completions",
  // vLLM's default --logprobs-mode is raw_logprobs.
  logprobs: "raw",
  write(request, model, stream) {
    return {
      model,
      prompt: Array.from(request.prompt),
      ...samplingFields(request),
      top_k: request.params.topK,
      return_token_ids: true,
      return_weight_versions: true,
      // Keys are token ids, because different tokens can have the same text.
      return_tokens_as_token_ids: (request.topLogprobs ?? 0) > 0 || undefined,
      stream: stream || undefined,
    };
  },
  read: readChoice,
  openStream: (request) => (event) => readChoice(event, request),
};

/** The fields of both routes. JSON.stringify omits undefined fields. */
function samplingFields({ params, promptLogprobs, topLogprobs = 0, topPromptLogprobs, routingFrom }: SampleRequest) {
  return {
    max_tokens: params.maxTokens,
    temperature: params.temperature,
    top_p: params.topP,
    min_p: params.minP,
    stop: params.stopStrings.length > 0 ? params.stopStrings : undefined,
    stop_token_ids: params.stopIds.length > 0 ? params.stopIds : undefined,
    ignore_eos: params.ignoreEos || undefined,
    // Otherwise the penalties in the model's generation_config.json would change the samples.
    repetition_penalty: 1,
    presence_penalty: 0,
    frequency_penalty: 0,
    seed: params.seed,
    // 0: only the log-probabilities of the sampled tokens.
    logprobs: topLogprobs,
    prompt_logprobs: topPromptLogprobs ?? (promptLogprobs ? 0 : undefined),
    routed_experts_prompt_start: routingFrom || undefined,
  };
}

function readChoice(body: Record<string, unknown>, request: SampleRequest): ServerReply {
  const { topLogprobs: topCount = 0 } = request;
  const { choice, ids, about, stopReason } = onlyChoice(body);
  const { token_logprobs: given, top_logprobs: top } = about;
  if (!Array.isArray(given)) throw new MissingTokens("its choices have no logprobs.token_logprobs");
  const version = toVersion(body.weight_version);
  const reply: ServerReply = {
    tokens: new Int32Array(ids),
    logprobs: toLogprobs(given, "logprobs.token_logprobs"),
    stopReason,
    versions:
      readVersions(choice.weight_versions) ?? (version === undefined ? undefined : [{ version, end: ids.length }]),
  };
  if (topCount > 0 && Array.isArray(top) && top.every(isObject)) {
    reply.topLogprobs = top.map((alternatives) => readTop(alternatives, topCount));
  }
  return {
    ...reply,
    ...readPrompt(choice.prompt_logprobs, request),
    ...readRouting(choice, request, stopReason),
  };
}

/** The reply in an answer, with what both routes say of it in the same fields. */
function onlyChoice(body: Record<string, unknown>) {
  const [choice] = Array.isArray(body.choices) ? body.choices : [];
  if (!isObject(choice)) throw new Error("the inference server's answer has no choices");
  const { token_ids: ids, logprobs, finish_reason: reason } = choice;
  if (!Array.isArray(ids)) throw new MissingTokens("its choices have no token_ids");
  const stopReason = reason === null || reason === undefined ? undefined : toStopReason(String(reason));
  return { choice, ids: ids as number[], about: isObject(logprobs) ? logprobs : {}, stopReason };
}

/**
 * The requested experts, which the last event of a stream has. A reply that was ended early may have none.
 *
 * @throws UserError if the server does not return them
 */
function readRouting(
  { routed_experts: npy }: Record<string, unknown>,
  { routingFrom: first }: SampleRequest,
  stopReason: ServerReply["stopReason"],
): Pick<ServerReply, "routing"> {
  if (first === undefined || stopReason === undefined) return {};
  if (typeof npy === "string") return { routing: [{ first, npy }] };
  if (stopReason === "aborted") return {};
  throw new UserError(
    "the inference server does not return the experts of its tokens, which router_replay=R3 repeats",
    {
      hint: "start vLLM 0.32 or newer with --enable-return-routed-experts, or set rllm.algorithm.router_replay=R2",
    },
  );
}

/** What a request asks about its prompt. */
function readPrompt(
  given: unknown,
  { prompt, promptLogprobs, topPromptLogprobs: count }: SampleRequest,
): Pick<ServerReply, "promptLogprobs" | "topPromptLogprobs"> {
  if (!Array.isArray(given)) return {};
  return {
    ...(promptLogprobs ? { promptLogprobs: readPromptLogprobs(given, prompt) } : {}),
    ...(count === undefined ? {} : { topPromptLogprobs: given.map((entry) => readLikely(entry, count)) }),
  };
}

/** @param entry `{ "17": { "logprob": -0.5 }, ... }`: the most likely tokens, and the prompt's own if it is not among them */
function readLikely(entry: unknown, count: number): LikelyTokens {
  const likely = Object.entries(isObject(entry) ? entry : {}).map(([token, about]) => {
    const logprob = isObject(about) ? about.logprob : undefined;
    return { token: Number(token), logprob };
  });
  const logprobs = toLogprobs(
    likely.map(({ logprob }) => logprob),
    "prompt_logprobs",
  );
  return mostLikely(
    likely.map(({ token }, index) => ({ token, logprob: logprobs[index]! })),
    count,
  );
}

/** @param given `[null, { "17": { "logprob": -0.5 } }, ...]`: for each prompt token, plus more likely tokens if requested */
function readPromptLogprobs(given: readonly unknown[], prompt: Int32Array): Float32Array {
  const logprobs = given.map((entry, index) => {
    const token = isObject(entry) ? entry[`${prompt[index]}`] : undefined;
    if (index > 0 && !isObject(token)) {
      throw new RunError(`the inference server returned prompt_logprobs without token ${prompt[index]} of the prompt`);
    }
    return isObject(token) ? token.logprob : undefined;
  });
  const [, ...rest] = logprobs;
  return Float32Array.of(Number.NaN, ...toLogprobs(rest, "prompt_logprobs"));
}

/** @param alternatives `{ "token_id:17": -0.5, ... }`: the most likely tokens, and the sampled one if it is not among them */
function readTop(alternatives: Record<string, unknown>, count: number) {
  const entries = Object.entries(alternatives).map(([name, logprob]) => ({
    token: Number(name.replace("token_id:", "")),
    logprob: Number(logprob),
  }));
  return mostLikely(entries, count);
}

function mostLikely(entries: readonly { token: number; logprob: number }[], count: number): LikelyTokens {
  const ranked = [...entries].sort((left, right) => right.logprob - left.logprob).slice(0, count);
  return {
    tokens: Int32Array.from(ranked, ({ token }) => token),
    logprobs: Float32Array.from(ranked, ({ logprob }) => logprob),
  };
}

// vLLM's `/inference/v1/generate`: token ids in and out, with the version of the weights for each token.
//
// Images: vLLM expands placeholders and processes images itself, but Hone's tokens are already expanded. So the tokens of each image are
// replaced by its placeholder, the images are sent in the same request (`token_ids` and `content_parts` of `/inference/v1/generate`), and
// the prompt that vLLM returns (`return_token_ids`) must equal Hone's tokens. vLLM assigns images to the first placeholders of a prompt: if
// the model itself sampled one before an image, the call fails and its rollout is repeated. vLLM's `features` are not used: they
// need tensors in its own serialization, and their ranges do not support other tokens between the patches. Servers that Hone starts
// resize with Pillow (`use_fast: false`), as the worker does: torchvision's rounding changes log-probabilities of a tiny model by 0.007
// on average. `model.train_vision` is refused, because vLLM keeps the features of images when its weights change.

export const vllmGenerate: Dialect = {
  path: "/inference/v1/generate",
  images: { placeholders: "first", transparency: true },
  logprobs: "raw",
  write(request, model, stream, id) {
    return {
      request_id: id,
      model,
      token_ids: Array.from(request.prompt),
      content_parts: request.images?.map((url) => ({ type: "image_url", url })),
      return_token_ids: request.images && true,
      sampling_params: {
        ...samplingFields(request),
        top_k: Math.max(0, request.params.topK),
        // The server must decode text only for stop strings.
        detokenize: request.params.stopStrings.length > 0,
      },
      stream: stream || undefined,
    };
  },
  read(body, request) {
    if (request.media?.length) requireSamePrompt(request, body.prompt_token_ids, sameProcessor);
    return readGenerateChoice(body, request);
  },
  openStream(request) {
    // The first event contains the prompt.
    let isFirst = true;
    return (event) => {
      if (isFirst && request.media?.length) requireSamePrompt(request, event.prompt_token_ids, sameProcessor);
      isFirst = false;
      return readGenerateChoice(event, request);
    };
  },
  abort: (ids) => ({
    path: "/inference/v1/abort_requests",
    body: { request_ids: ids.map((id) => `generate-tokens-${id}`) },
  }),
};

const sameProcessor =
  "serve the run's model folder with its own preprocessor_config.json, without --mm-processor-kwargs";

function readGenerateChoice(body: Record<string, unknown>, request: SampleRequest): ServerReply {
  const { topLogprobs: topCount = 0 } = request;
  const { choice, ids, about, stopReason } = onlyChoice(body);
  const content = Array.isArray(about.content) ? about.content : undefined;
  if (content === undefined && ids.length > 0) throw new MissingTokens("its choices have no logprobs.content");
  const entries = (content ?? []).filter(isObject);
  const reply: ServerReply = {
    tokens: new Int32Array(ids),
    logprobs: toLogprobs(
      entries.map(({ logprob }) => logprob),
      "logprobs.content",
    ),
    stopReason,
    versions: readVersions(choice.weight_versions),
  };
  if (topCount > 0) reply.topLogprobs = entries.map(({ top_logprobs: top }) => readGenerateTop(top, topCount));
  return { ...reply, ...readPrompt(body.prompt_logprobs, request), ...readRouting(choice, request, stopReason) };
}

/** @param given the most likely tokens, and the sampled one if it is not among them; vLLM 0.24 has the id only in `token` */
function readGenerateTop(given: unknown, count: number) {
  const entries = (Array.isArray(given) ? given : []).filter(isObject).map(({ token_id: id, token, logprob }) => ({
    token: Number(id ?? String(token).replace("token_id:", "")),
    logprob: Number(logprob),
  }));
  return mostLikely(entries, count);
}

// Chooses between vLLM's two routes for token ids.

/** @throws ServerFailed when it does not answer */
export async function vllmDialect(server: Server): Promise<Dialect> {
  server.generates ??= hasGenerate(server);
  try {
    return (await server.generates) ? vllmGenerate : vllmCompletions;
  } catch (error) {
    server.generates = undefined;
    throw error;
  }
}

/** vLLM has the route only with --enable-scale-out. It accepts POST, so such a server answers GET with 405 instead of 404. */
async function hasGenerate({ url, headers, pool }: Server): Promise<boolean> {
  try {
    const { status } = await fetch(url + vllmGenerate.path, {
      headers,
      dispatcher: pool,
      signal: AbortSignal.timeout(60_000),
    });
    return status === 405;
  } catch (error) {
    throw new ServerFailed(`the inference server at ${url} does not answer: ${reasonOf(error)}`, { cause: error });
  }
}
