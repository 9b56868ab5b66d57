/** A conversation with tools through the gateway, for every recorded model (src/chat/reply-formats.fixture.ts). */
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import type { Sample, SampleOptions, SampleRequest } from "../backends/engine.ts";
import type { ChatMessage, ToolDefinition } from "../chat/messages.ts";
import { question } from "../chat/reply-formats.fixture.ts";
import type { Chat } from "../chat/types.ts";
import { dialects, type Shown } from "./dialects.fixture.ts";
import { testGateway } from "./open-gateway.fixture.ts";

const toolResult = '{"found": "Bahnhofstrasse 1"}';

export interface Played {
  prompt: number[];
  sampled: number[];
  /** The messages of this call and those before it, as the gateway recorded them. */
  messages: readonly ChatMessage[];
  starts: string | undefined;
}

interface PlayOptions {
  /** How the client talks. Default: with OpenAI's client for chat completions, not streamed. */
  dialect?: keyof typeof dialects;
  streamed?: boolean;
}

/** A gateway whose model gives these replies, whatever it is asked. */
export async function openScripted(chat: Chat, replies: readonly Int32Array[]) {
  const prompts: number[][] = [];
  async function* sample(
    requests: readonly SampleRequest[],
    { onToken }: SampleOptions = {},
  ): AsyncGenerator<Sample, void, undefined> {
    for (const [request, { prompt }] of requests.entries()) {
      const tokens = replies[prompts.length] ?? new Int32Array();
      prompts.push([...prompt]);
      for (const token of tokens) onToken?.(request, token, 0);
      yield { request, tokens, logprobs: new Float32Array(tokens.length), stopReason: "stop", policyVersion: 0 };
    }
  }
  const limits = { maxPromptLength: 1e6, maxResponseLength: 1e6 };
  return { ...(await testGateway({ reply: () => "", chat, sampler: { sample }, limits })), prompts };
}

/** A question, a reply with calls, their results, an answer, another question and its answer, through the gateway and a client. */
export async function playConversation(
  chat: Chat,
  replies: readonly Int32Array[],
  tools: readonly ToolDefinition[],
  { dialect = "chat completions", streamed = false }: PlayOptions = {},
) {
  const opened = await openScripted(chat, replies);
  try {
    const talk = dialects[dialect](opened.entry, tools, streamed);
    const answers: Shown[] = [];
    const ask = async () => {
      const shown = await talk.ask();
      answers.push(shown);
      return shown;
    };
    let refused: string | undefined;
    try {
      talk.say(question);
      const { calls } = await ask();
      for (const { id } of calls) talk.result(id, toolResult);
      if (calls.length === 0) talk.say("Go on.");
      await ask();
      talk.say("And then?");
      await ask();
    } catch (error) {
      if (!(error instanceof OpenAI.BadRequestError || error instanceof Anthropic.BadRequestError)) throw error;
      refused = error.message;
    }
    const steps = opened.steps();
    const played = steps.map(
      (step, at): Played => ({
        prompt: opened.prompts[at]!,
        sampled: [...replies[at]!],
        messages: step.messages,
        starts: step.starts,
      }),
    );
    return { played, answers, refused };
  } finally {
    await opened.close();
  }
}

interface WrittenReply {
  text: string;
  end: string;
  message?: { reasoning?: string; content: string; calls?: { name: string; arguments: Record<string, unknown> }[] };
}

/** The recorded replies that make a conversation: one with calls, with thinking and two calls if the model writes these, and answers. */
export function scriptedReplies(
  cases: readonly WrittenReply[],
  chat: Chat,
  tools: readonly ToolDefinition[],
): { text: string; message: WrittenReply["message"] }[] {
  const withMessage = cases.filter(({ message }) => message !== undefined);
  const calls = withMessage.filter(({ message }) => message?.calls);
  const call =
    calls.find(({ message }) => message?.reasoning && message.content === "") ??
    calls.find(({ message }) => message?.calls?.length === 2) ??
    calls[0];
  const answers = withMessage.filter(({ message }) => !message?.calls);
  const answer = answers.find(({ message }) => message?.reasoning) ?? answers[0];
  const plain = answers.find(({ message }) => !message?.reasoning);
  const { close = "" } = chat.format.thinking ?? {};
  const isBegun = chat.thinkingOf({ tools }) === "begun";
  return [call, answer, plain].map((each) => {
    const { text = "", end = "", message } = each ?? {};
    // The templates of some models write no thinking in the history, though their prompt begins it.
    if (!isBegun || text.includes(close) || message === undefined) return { text: text + end, message };
    return { text: `Well.${close}${text}${end}`, message: { ...message, reasoning: "Well." } };
  });
}
