/** `POST /v1/completions` */
import { randomUUID } from "node:crypto";
import { cutAtStop } from "../../chat/cut-at-stop.ts";
import type { Generated } from "../../rollout/generate.ts";
import type { HttpExchange } from "../http-exchange.ts";
import { type CallContext, callModel, type ModelCall } from "../model-call.ts";
import {
  type Body,
  badParameter,
  checkParameters,
  type Rule,
  readBoolean,
  readName,
  readNumber,
  readObject,
} from "../read-parameters.ts";
import { replyStream } from "../stream-reply.ts";
import { commonRules, readSampling } from "./sampling-parameters.ts";
import { completionLogprobs } from "./token-logprobs.ts";

const completionRules: Readonly<Record<string, Rule>> = {
  ...commonRules,
  prompt: "used",
  add_special_tokens: "used",
  echo: { refused: "the client has the prompt", unless: [false] },
  suffix: { refused: "models are not trained to fill in", unless: [""] },
  best_of: { refused: "choosing the best of several replies would hide what was sampled", unless: [1] },
};

/** What the API means where it is not said. */
const defaultMaxTokens = 16;

export async function openaiCompletions(exchange: HttpExchange, body: Body, context: CallContext): Promise<void> {
  checkParameters(body, completionRules, context.notices);
  const logprobs = readNumber(body, "logprobs", { min: 0, max: 20, integer: true });
  const tokenIds = readBoolean(body, "return_token_ids") ?? false;
  const maxTokens = readNumber(body, "max_tokens", { min: 1, integer: true }) ?? defaultMaxTokens;
  const n = readNumber(body, "n", { min: 1, max: 128, integer: true }) ?? 1;
  const id = `cmpl-${randomUUID()}`;
  const prompts = readPrompts(body);
  const calls = prompts.map(
    (prompt, index): ModelCall => ({
      id: prompts.length === 1 ? id : `${id}.${index}`,
      model: readName(body, "model") ?? "",
      prompt,
      n,
      params: readSampling(body, maxTokens),
      topLogprobs: logprobs ?? 0,
      metadata: readObject(body, "metadata") ?? {},
    }),
  );
  const head = { id, object: "text_completion", created: Math.floor(Date.now() / 1000), model: calls[0]!.model };
  const choice = (generated: Generated, index: number, text: string) => ({
    ...{ index, text, finish_reason: generated.stopReason },
    logprobs: logprobs === undefined ? null : completionLogprobs(context.chat, generated),
    ...(tokenIds
      ? { token_ids: Array.from(generated.tokens), prompt_token_ids: Array.from(generated.promptTokens) }
      : {}),
  });

  if (!readBoolean(body, "stream")) {
    const replies = (await Promise.all(calls.map((call) => callModel(context, call)))).flat();
    const choices = replies.map((generated, index) =>
      choice(generated, index, cutAtStop(generated.reply.content, calls[0]!.params.stop)),
    );
    return exchange.sendJson(200, { ...head, choices, usage: usage(replies, n) });
  }

  const withUsage = readBoolean(readObject(body, "stream_options") ?? {}, "include_usage") ?? false;
  const base = { ...head, ...(withUsage ? { usage: null } : {}) };
  let started = false;
  const send = (data: object) => {
    if (!started) exchange.startEvents();
    started = true;
    exchange.sendEvent(JSON.stringify({ ...base, ...data }));
  };
  const stop = calls[0]!.params.stop ?? [];
  const streams = Array.from({ length: calls.length * n }, () => replyStream(context.chat, { stops: stop }));
  const replies = await Promise.all(
    calls.map((call, at) =>
      callModel(context, call, (index, token) => {
        const { content: text } = streams[at * n + index]!.push(token);
        if (text !== "") send({ choices: [{ index: at * n + index, text, logprobs: null, finish_reason: null }] });
      }),
    ),
  );
  for (const [index, generated] of replies.flat().entries()) {
    const content = cutAtStop(generated.reply.content, stop);
    send({ choices: [choice(generated, index, streams[index]!.end({ ...generated.reply, content }).content)] });
  }
  if (withUsage) send({ choices: [], usage: usage(replies.flat(), n) });
  exchange.sendEvent("[DONE]");
  exchange.end();
}

/** One string, several, one list of token ids, or several. */
function readPrompts({ prompt, ...body }: Body): ModelCall["prompt"][] {
  const addSpecial = readBoolean(body, "add_special_tokens") ?? true;
  const list: unknown[] =
    Array.isArray(prompt) && prompt.length > 0 && !prompt.every(Number.isInteger) ? prompt : [prompt];
  return list.map((each) => {
    if (typeof each === "string") return { text: each, addSpecial };
    if (Array.isArray(each) && each.length > 0 && each.every((id) => Number.isInteger(id) && id >= 0)) {
      return { tokens: Int32Array.from(each as number[]) };
    }
    throw badParameter("prompt", "prompt must be a string, a list of token ids, or a list of either");
  });
}

/** Each prompt counts once, however many replies it got. */
function usage(replies: readonly Generated[], n: number) {
  const prompt = replies.reduce((sum, { promptTokens }, index) => sum + (index % n === 0 ? promptTokens.length : 0), 0);
  const completion = replies.reduce((sum, { tokens }) => sum + tokens.length, 0);
  return { prompt_tokens: prompt, completion_tokens: completion, total_tokens: prompt + completion };
}
