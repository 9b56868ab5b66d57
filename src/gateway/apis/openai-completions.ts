/** `POST /v1/completions` */
import { randomUUID } from "node:crypto";
import { cutAtStop } from "../../chat/conversations/bridge.ts";
import type { Generated } from "../../rollout/session/types.ts";
import { type CallContext, callModel, type ModelCall } from "../calls/model-call.ts";
import { replyStream } from "../calls/stream-reply.ts";
import type { HttpExchange } from "../requests/http-exchange.ts";
import {
  type Body,
  badParameter,
  checkParameters,
  type Rules,
  readBoolean,
  readModel,
  readNumber,
  readObject,
  used,
} from "../requests/read-parameters.ts";
import { unixSeconds } from "./openai-chat.ts";
import { commonRules, readMaxTokens, readSampling } from "./sampling-parameters.ts";
import { completionLogprobs } from "./token-logprobs.ts";

const completionRules: Rules = {
  ...commonRules,
  ...used("prompt add_special_tokens"),
  echo: { refused: "the client already has the prompt", unless: [false] },
  suffix: { refused: "models are not trained to fill in", unless: [""] },
  best_of: { refused: "choosing the best of several replies would hide what was sampled", unless: [1] },
};

/** Of one request: what answers it is in memory at once. */
const maxReplies = 1024;

/** The API's own default. */
const defaultMaxTokens = 16;

export async function openaiCompletions(exchange: HttpExchange, body: Body, context: CallContext): Promise<void> {
  checkParameters(body, completionRules, context.notices);
  const logprobs = readNumber(body, "logprobs", { min: 0, max: 20, integer: true });
  const tokenIds = readBoolean(body, "return_token_ids") ?? false;
  const n = readNumber(body, "n", { min: 1, max: 128, integer: true }) ?? 1;
  const params = readSampling(body, readMaxTokens(body, "max_tokens") ?? defaultMaxTokens);
  const id = `cmpl-${randomUUID()}`;
  const model = readModel(body);
  const metadata = readObject(body, "metadata") ?? {};
  const prompts = readPrompts(body);
  if (prompts.length * n > maxReplies) {
    throw badParameter("prompt", `${prompts.length} prompts with n ${n} ask for more than ${maxReplies} replies`);
  }
  const calls = prompts.map((prompt, index): ModelCall => {
    const callId = prompts.length === 1 ? id : `${id}.${index}`;
    return { id: callId, model, prompt, n, params, topLogprobs: logprobs ?? 0, metadata };
  });
  const head = { id, object: "text_completion", created: unixSeconds(), model };
  const clientText = ({ reply }: Generated) => cutAtStop(reply.content, params.stop);
  const choice = (generated: Generated, index: number, text: string) => ({
    index,
    text,
    finish_reason: generated.stopReason,
    logprobs: logprobs === undefined ? null : completionLogprobs(context.chat, generated),
    token_ids: tokenIds ? Array.from(generated.tokens) : undefined,
    prompt_token_ids: tokenIds ? Array.from(generated.promptTokens) : undefined,
  });

  if (!readBoolean(body, "stream")) {
    const replies = (await Promise.all(calls.map((call) => callModel(context, call)))).flat();
    const choices = replies.map((generated, index) => choice(generated, index, clientText(generated)));
    return exchange.sendJson(200, { ...head, choices, usage: usageOf(replies, n) });
  }

  const withUsage = readBoolean(readObject(body, "stream_options") ?? {}, "include_usage") ?? false;
  const send = (data: object) => {
    exchange.startEvents();
    exchange.sendEvent(JSON.stringify({ ...head, usage: withUsage ? null : undefined, ...data }));
  };
  const streams = Array.from({ length: calls.length * n }, () => replyStream(context.chat, { stops: params.stop }));
  const replies = await Promise.all(
    calls.map((call, at) =>
      callModel(context, call, (of, token) => {
        const index = at * n + of;
        const text = streams[index]?.push(token).content ?? "";
        if (text !== "") send({ choices: [{ index, text, logprobs: null, finish_reason: null }] });
      }),
    ),
  );
  for (const [index, generated] of replies.flat().entries()) {
    const rest = streams[index]?.end({ ...generated.reply, content: clientText(generated) });
    send({ choices: [choice(generated, index, rest?.content ?? "")] });
  }
  if (withUsage) send({ choices: [], usage: usageOf(replies.flat(), n) });
  exchange.sendEvent("[DONE]");
  exchange.end();
}

/** A string, a list of token ids, or a list of either. */
function readPrompts(body: Body): ModelCall["prompt"][] {
  const { prompt } = body;
  const addSpecial = readBoolean(body, "add_special_tokens") ?? true;
  const isList = Array.isArray(prompt) && prompt.length > 0 && !prompt.every(Number.isInteger);
  const prompts: unknown[] = isList ? prompt : [prompt];
  return prompts.map((each) => {
    if (typeof each === "string") return { text: each, addSpecial };
    if (Array.isArray(each) && each.length > 0 && each.every((id) => Number.isInteger(id) && id >= 0)) {
      return { tokens: Int32Array.from(each as number[]) };
    }
    throw badParameter("prompt", "prompt must be a string, a list of token ids, or a list of either");
  });
}

/** Counts each prompt once, not once per reply. */
function usageOf(replies: readonly Generated[], n: number) {
  const prompt = replies.reduce((sum, { promptTokens }, index) => sum + (index % n === 0 ? promptTokens.length : 0), 0);
  const completion = replies.reduce((sum, { tokens }) => sum + tokens.length, 0);
  return { prompt_tokens: prompt, completion_tokens: completion, total_tokens: prompt + completion };
}
