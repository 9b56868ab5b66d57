/** One conversation with thinking and tools for each recorded model: the tokens that the model sees, and what the client gets. */
import { describe, expect, test, vi } from "vitest";
import { checkTemplate } from "../chat/renderers.ts";
import { formatOf, named, recorded, recordedChat, replay, tokenizerOf } from "../chat/reply-formats.fixture.ts";
import { formats } from "../chat/reply-formats.ts";
import type { RenderText } from "../chat/template.ts";
import { playConversation, scriptedReplies } from "./formats.fixture.ts";
import { replyStream } from "./model-call.ts";

const { tools } = recorded;
const played = recorded.models.filter(({ facts }) => facts !== null && !facts.refused);

// Templates with dates wrote the day on which they were recorded, which is part of the renderings.
vi.setConfig({ testTimeout: 60_000 });

describe.each(played.map((model) => [model.name, model] as const))("%s", (_name, model) => {
  const tokenizer = tokenizerOf(model);
  const render = replay(model, tokenizer);
  const cases = model.cases.map(({ tokens, ...rest }) => ({ ...rest, text: tokenizer.decode(tokens) }));
  const script = scriptedReplies(cases, recordedChat(tokenizer, model.eos, formatOf(model), render, true), tools);
  const replies = script.map(({ text }) => tokenizer.encode(text));
  const open = (accumulate: boolean) => recordedChat(tokenizer, model.eos, formatOf(model), render, accumulate);
  const startsWith = (whole: readonly number[], beginning: readonly number[]) =>
    expect(whole.slice(0, beginning.length)).toEqual(beginning);

  test("each turn continues the tokens that the model saw and sampled", async () => {
    const chat = open(true);
    const { played: turns, answers } = await playConversation(chat, replies, tools);
    expect(turns.map(({ starts }) => starts)).toEqual(["new_conversation", undefined, undefined]);
    const [first, ...later] = turns;
    expect(first!.prompt).toEqual([...chat.render(first!.messages, { tools })]);
    for (const [at, turn] of later.entries()) startsWith(turn.prompt, [...turns[at]!.prompt, ...turns[at]!.sampled]);
    // The client gets what the model wrote.
    const { message } = script[0]!;
    expect(answers[0]!.calls.map((call) => call.arguments)).toEqual(
      (message?.calls ?? []).map((call) => call.arguments),
    );
    expect(answers[0]!.reasoning || undefined).toBe(message?.reasoning);
  });

  test("without accumulate_reasoning, a template that drops thinking starts a sequence with transformers' tokens", async () => {
    const chat = open(false);
    const { played: turns } = await playConversation(chat, replies, tools);
    for (const [at, turn] of turns.entries()) {
      if (turn.starts === undefined) startsWith(turn.prompt, [...turns[at - 1]!.prompt, ...turns[at - 1]!.sampled]);
      else expect(turn.prompt).toEqual([...chat.render(turn.messages, { tools })]);
      expect(turn.starts ?? "reasoning_dropped").toBe(at === 0 ? "new_conversation" : "reasoning_dropped");
    }
  });

  test("a streamed reply is the parsed reply", () => {
    const chat = open(true);
    const { open: opens = "", close = "" } = chat.format.thinking ?? {};
    for (const [at, reply] of replies.entries()) {
      const { text } = script[at]!;
      // Thinking that only ends was sent as text before its end arrived.
      if (chat.thinkingOf({ tools }) === "possible" && !text.includes(opens) && text.includes(close)) continue;
      const stream = replyStream(chat, { options: { tools } });
      const pieces = [...reply].map((token) => stream.push(token));
      const parsed = chat.parse(reply, { tools });
      const all = [...pieces, stream.end(parsed)];
      expect(all.map(({ reasoning }) => reasoning).join("")).toBe(parsed.reasoning ?? "");
      expect(all.map(({ content }) => content).join("")).toBe(parsed.content);
      // Thinking is not held back until the end.
      if (parsed.reasoning) expect(pieces.some(({ reasoning }) => reasoning !== "")).toBe(true);
    }
  });

  test("the check of its template finds what was recorded", () => {
    expect(checkTemplate(open(false))).toEqual(model.facts?.check);
  });
});

/** Formats whose models' templates no installed package has: a template of the same kind stands for them. */
describe.each(Object.entries(named))("%s, with another template", (name, format) => {
  const model = recorded.models.find((each) => each.name === name)!;
  const tokenizer = tokenizerOf({ special: [...model.special, "<|im_start|>"], plain: model.plain });
  const render: RenderText = (messages, { addGenerationPrompt = true }) =>
    messages
      .map(({ role, content }) => `<|im_start|>${role}\n${typeof content === "string" ? content : ""}${model.eos}\n`)
      .join("") + (addGenerationPrompt ? "<|im_start|>assistant\n" : "");
  const cases = model.cases.map(({ tokens, ...rest }) => ({ ...rest, text: tokenizer.decode(tokens) }));
  const chat = recordedChat(tokenizer, model.eos, formats[format], render, true);
  const script = scriptedReplies(cases, chat, tools);
  const replies = script.map(({ text }) => tokenizer.encode(text));

  test("each turn continues the tokens that the model saw and sampled", async () => {
    const { played: turns, answers } = await playConversation(chat, replies, tools);
    expect(turns.map(({ starts }) => starts)).toEqual(["new_conversation", undefined, undefined]);
    for (const [at, turn] of turns.slice(1).entries()) {
      const before = [...turns[at]!.prompt, ...turns[at]!.sampled];
      expect(turn.prompt.slice(0, before.length)).toEqual(before);
    }
    const called = (script[0]!.message?.calls ?? []).map((call) => call.arguments);
    expect(called.length).toBeGreaterThan(0);
    expect(answers[0]!.calls.map((call) => call.arguments)).toEqual(called);
  });
});

test("at least 12 formats are played", () => {
  expect(new Set(played.map((model) => formatOf(model).calls)).size).toBeGreaterThanOrEqual(12);
});
