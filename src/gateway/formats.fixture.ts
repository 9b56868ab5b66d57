/** A conversation with tools through the gateway, for every recorded model (src/chat/formats/recorded.fixture.ts). */
import OpenAI from "openai";
import type { Sample, SampleRequest } from "../backends/engine.ts";
import { question } from "../chat/formats/recorded.fixture.ts";
import type { ChatMessage, ToolDefinition } from "../chat/messages.ts";
import type { Chat } from "../chat/types.ts";
import { testGateway } from "./open-gateway.fixture.ts";

const toolResult = '{"found": "Bahnhofstrasse 1"}';

export interface Played {
  prompt: number[];
  sampled: number[];
  /** The messages of this call and those before it, as the gateway recorded them. */
  messages: readonly ChatMessage[];
  starts: string | undefined;
}

/**
 * A question, a reply with calls, their results, an answer, another question and its answer, through the gateway and OpenAI's
 * client.
 */
export async function playConversation(chat: Chat, replies: readonly Int32Array[], tools: readonly ToolDefinition[]) {
  const prompts: number[][] = [];
  async function* sample(requests: readonly SampleRequest[]): AsyncGenerator<Sample, void, undefined> {
    for (const [request, { prompt }] of requests.entries()) {
      const tokens = replies[prompts.length] ?? new Int32Array();
      prompts.push([...prompt]);
      yield { request, tokens, logprobs: new Float32Array(tokens.length), stopReason: "stop", policyVersion: 0 };
    }
  }
  const limits = { maxPromptLength: 1e6, maxResponseLength: 1e6 };
  const opened = await testGateway({ reply: () => "", chat, sampler: { sample }, limits });
  try {
    const openai = new OpenAI({ baseURL: opened.entry.baseURL, apiKey: "any" });
    const offered = tools.map((tool) => ({ type: "function" as const, function: { ...tool } }));
    const messages: OpenAI.ChatCompletionMessageParam[] = [];
    const answers: OpenAI.ChatCompletionMessage[] = [];
    const ask = async () => {
      const { choices } = await openai.chat.completions.create({ model: "m", messages, tools: offered } as never);
      const { message } = (choices as OpenAI.ChatCompletion["choices"])[0]!;
      messages.push(message);
      answers.push(message);
      return message;
    };
    let refused: string | undefined;
    try {
      messages.push({ role: "user", content: question });
      const { tool_calls: calls = [] } = await ask();
      for (const { id } of calls) messages.push({ role: "tool", tool_call_id: id, content: toolResult });
      if (calls.length === 0) messages.push({ role: "user", content: "Go on." });
      await ask();
      messages.push({ role: "user", content: "And then?" });
      await ask();
    } catch (error) {
      if (!(error instanceof OpenAI.BadRequestError)) throw error;
      refused = error.message;
    }
    const steps = opened.steps();
    const played = steps.map(
      (step, at): Played => ({
        prompt: prompts[at]!,
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
