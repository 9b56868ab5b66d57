/** Thinking, tool calls and text are the same in each API, streamed or not, and the next turn continues the sampled tokens. */
import OpenAI from "openai";
import { describe, expect, test } from "vitest";
import { formatOf, question, recorded, recordedChat, replay, tokenizerOf } from "../chat/reply-formats.fixture.ts";
import type { RenderText } from "../chat/template.ts";
import { nightly } from "../nightly.fixture.ts";
import { dialects } from "./dialects.fixture.ts";
import { openScripted, playConversation, scriptedReplies } from "./formats.fixture.ts";

const { tools } = recorded;
const played = recorded.models.filter(({ facts }) => facts !== null && !facts.refused);

/** One model for each way to write calls and thinking. */
const kinds = played.filter((model, at) => {
  const { calls, thinking } = formatOf(model);
  const others = played.slice(0, at).map(formatOf);
  return !others.some((other) => other.calls === calls && other.thinking?.open === thinking?.open);
});
const models = nightly ? played : kinds;

/** Some APIs require a limit, and a schema for each tool. Neither was recorded, and neither changes what templates write. */
const asRecorded =
  (render: RenderText): RenderText =>
  (messages, { addGenerationPrompt, tools: offered }) => {
    const names = offered?.map(({ name }) => name);
    const given = names && tools.filter(({ name }) => names.includes(name));
    return render(messages, { ...(given && { tools: given }), addGenerationPrompt });
  };

describe.each(models.map((model) => [model.name, model] as const))("%s", (_name, model) => {
  const tokenizer = tokenizerOf(model);
  const chat = recordedChat(tokenizer, model.eos, formatOf(model), asRecorded(replay(model, tokenizer)), true);
  const cases = model.cases.map(({ tokens, ...rest }) => ({ ...rest, text: tokenizer.decode(tokens) }));
  const replies = scriptedReplies(cases, chat, tools).map(({ text }) => tokenizer.encode(text));
  const expected = replies.map((reply) => {
    const { reasoning = "", content, toolCalls } = chat.parse(reply, { tools });
    return { reasoning, content, calls: toolCalls.map(({ name, arguments: given }) => ({ name, arguments: given })) };
  });
  /** Thinking that only ends is sent as text before its end arrives. */
  const streamed = expected.map((reply, at) => {
    const { open = "", close = "" } = chat.format.thinking ?? {};
    const text = tokenizer.decode(replies[at]!);
    const onlyEnds = chat.thinkingOf({ tools }) === "possible" && !text.includes(open) && text.includes(close);
    return onlyEnds ? { ...reply, reasoning: "", content: `${reply.reasoning}\n\n${reply.content}`.trim() } : reply;
  });
  const ways = Object.keys(dialects).flatMap((dialect) =>
    [false, true].map((streamed) => ({ dialect: dialect as keyof typeof dialects, streamed })),
  );

  test.each(ways)("$dialect, streamed: $streamed", async (way) => {
    const { played: turns, answers, refused } = await playConversation(chat, replies, tools, way);
    expect(refused).toBeUndefined();
    const seen = answers.map(({ calls, ...rest }) => {
      return { ...rest, calls: calls.map(({ name, arguments: given }) => ({ name, arguments: given })) };
    });
    expect(seen).toEqual(way.streamed ? streamed : expected);
    expect(turns.map(({ starts }) => starts)).toEqual(["new_conversation", undefined, undefined]);
    for (const [at, { prompt }] of turns.slice(1).entries()) {
      const before = [...turns[at]!.prompt, ...turns[at]!.sampled];
      expect(prompt.slice(0, before.length)).toEqual(before);
    }
  });

  test("completions: a prompt in tokens, streamed or not, gives the sampled tokens, which a longer prompt continues", async () => {
    const opened = await openScripted(chat, replies);
    try {
      const openai = new OpenAI(opened.entry);
      const prompt = [...chat.render([{ role: "user", content: question }], { tools })];
      const body = { model: "m", max_tokens: 100_000, return_token_ids: true };
      const first = await openai.completions.create({ ...body, prompt });
      const { text, token_ids: sampled } = first.choices[0] as OpenAI.CompletionChoice & { token_ids: number[] };
      expect(sampled).toEqual([...replies[0]!]);
      expect(text).toBe(tokenizer.decode(replies[0]!, { skipSpecial: true }));
      const parts = await openai.completions.create({ ...body, prompt: [...prompt, ...sampled, 1], stream: true });
      let streamedText = "";
      for await (const { choices } of parts) streamedText += choices[0]?.text ?? "";
      expect(streamedText).toBe(tokenizer.decode(replies[1]!, { skipSpecial: true }));
      expect(opened.steps().map(({ starts }) => starts)).toEqual(["raw_prompt", undefined]);
    } finally {
      await opened.close();
    }
  });
});

test.each(["messages", "responses"] as const)(
  "%s: thinking after the answer is streamed behind it",
  async (dialect) => {
    const model = played.find(({ name }) => name === "gpt-oss")!;
    const tokenizer = tokenizerOf(model);
    const chat = recordedChat(tokenizer, model.eos, formatOf(model), asRecorded(replay(model, tokenizer)), true);
    const text = "<|channel|>final<|message|>Hi.<|end|><|start|>assistant<|channel|>analysis<|message|>hm<|end|>";
    const opened = await openScripted(chat, [tokenizer.encode(text)]);
    try {
      const talk = dialects[dialect](opened.entry, tools, true);
      talk.say(question);
      expect(await talk.ask()).toEqual({ reasoning: "hm", content: "Hi.", calls: [] });
    } finally {
      await opened.close();
    }
  },
);
