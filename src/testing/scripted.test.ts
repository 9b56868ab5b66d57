import { setTimeout as sleep } from "node:timers/promises";
import fc from "fast-check";
import { expect, test } from "vitest";
import { z } from "zod";
import { defineTool, useTools } from "../agents/tools.ts";
import type { Sample, SamplingParams } from "../backends/engine.ts";
import { plainParams } from "../backends/engine-parts.ts";
import { characterChat, lines, runWorkflow, type Script, scriptedSampler } from "./scripted.ts";

const conversation = [
  { role: "system", content: "be brief" },
  { role: "user", content: "grüße 🎉" },
] as const;

test("each mark and each character of a conversation is one token", () => {
  const chat = characterChat();
  expect(chat.renderText(conversation)).toBe("<|system|>be brief<|end|><|user|>grüße 🎉<|end|><|assistant|>");
  const tokens = chat.render(conversation);
  expect(tokens.length).toBe(8 + 7 + 5);
  expect(chat.decode(tokens)).toBe(chat.renderText(conversation));
  expect(chat.decode(tokens, { skipSpecial: true })).toBe("be briefgrüße 🎉");
  expect(chat.messagesOf(tokens)).toEqual(conversation);
  expect(chat.render(conversation, { addGenerationPrompt: false })).toEqual(tokens.slice(0, -1));
});

test("decoding restores any text", () => {
  const chat = characterChat();
  fc.assert(
    fc.property(fc.string({ unit: "grapheme" }), (text) => {
      const tokens = chat.encode(text);
      expect(chat.decode(tokens)).toBe(text);
      const decoder = chat.incrementalDecoder();
      expect([...tokens].map((token) => decoder.push(token)).join("") + decoder.end()).toBe(text);
      expect(tokens.every((id) => id >= 0 && id < chat.vocabularySize)).toBe(true);
    }),
  );
});

test("a list may contain whole replies, which are one token, and U+FFFD for all other characters", () => {
  const chat = characterChat(["a", "\uFFFD", "a(b)", "yes"]);
  expect([...chat.encode("aa(b)yes!<|end|>")]).toEqual([5, 7, 8, 6, 0]);
  expect(chat.decode([8, 7])).toBe("yesa(b)");
});

test("an alphabet makes the vocabulary small; other characters are refused", () => {
  const chat = characterChat("abca");
  expect(chat.vocabularySize).toBe(8);
  expect([...chat.encode("cab<|end|>")]).toEqual([7, 5, 6, 0]);
  expect(chat.decode([7, 99, -1, 5])).toBe("ca");
  expect(() => chat.encode("abd")).toThrow('the character "d" is not in the alphabet "abca"');
});

const params: SamplingParams = { ...plainParams, maxTokens: 8 };

async function sampleAll(script: Script, prompts: string[], more: Partial<SamplingParams> = {}, signal?: AbortSignal) {
  const { sampler, chat } = scriptedSampler(script);
  const requests = prompts.map((content) => ({
    prompt: chat.render([{ role: "user", content }]),
    params: { ...params, ...more },
  }));
  const samples: Sample[] = [];
  for await (const sample of sampler.sample(requests, signal ? { signal } : {})) samples.push(sample);
  return samples.map((sample) => ({ ...sample, text: chat.decode(sample.tokens) }));
}

test("samples finish when the script answers, with a log-probability of 0 for each token", async () => {
  const script: Script = async (messages) => {
    if (messages[0]?.content === "slow") await sleep(5);
    return messages[0]!.content.toUpperCase();
  };
  const samples = await sampleAll(script, ["slow", "fast"]);
  expect(samples.map(({ request, text, stopReason }) => [request, text, stopReason])).toEqual([
    [1, "FAST<|end|>", "stop"],
    [0, "SLOW<|end|>", "stop"],
  ]);
  expect([...samples[0]!.logprobs]).toEqual([0, 0, 0, 0, 0]);
});

test.each<[Partial<SamplingParams>, string, string]>([
  [{}, "abcdef<|end|>", "stop"],
  [{ maxTokens: 6 }, "abcdef", "length"],
  [{ maxTokens: 2 }, "ab", "length"],
  [{ stopStrings: ["x", "cd"] }, "abcd", "stop"],
  [{ stopStrings: ["cd"], maxTokens: 3 }, "abc", "length"],
  [{ stopIds: [5 + 98] }, "ab", "stop"],
  [{ ignoreEos: true }, "abcdef<|end|>", "length"],
])("%j gives %s", async (more, text, stopReason) => {
  expect(await sampleAll(() => "abcdef", ["go"], more)).toMatchObject([{ text, stopReason }]);
});

test("exact tokens are not changed", async () => {
  const [sample] = await sampleAll(() => Int32Array.of(70, 71), ["go"]);
  expect(sample).toMatchObject({ tokens: Int32Array.of(70, 71), stopReason: "length" });
});

test("a script that throws acts like a failing engine; a script that hangs can be aborted", async () => {
  const failing: Script = () => {
    throw new Error("no connection");
  };
  await expect(sampleAll(failing, ["go"])).rejects.toThrow("no connection");
  const abort = new AbortController();
  const hanging = sampleAll(() => new Promise(() => {}), ["go", "on"], {}, abort.signal);
  abort.abort();
  expect(await hanging).toMatchObject([{ stopReason: "aborted" }, { stopReason: "aborted" }]);
});

test("loading weights is refused with a hint to tabularEngine", async () => {
  const { sampler } = scriptedSampler(() => "");
  await expect(sampler.load({ kind: "engine", version: 1, id: "another" })).rejects.toMatchObject({
    hint: expect.stringContaining("tabularEngine"),
  });
});

test("a tool agent is tested without a model: lines of a conversation, some of them calls", async () => {
  const asked: unknown[] = [];
  const weather = defineTool({
    name: "weather",
    description: "The weather.",
    parameters: { city: z.string() },
    run: ({ city }) => {
      asked.push(city);
      return `sunny in ${city}`;
    },
  });
  const workflow = useTools<string>({
    prompt: (city) => `Weather in ${city}?`,
    tools: [weather],
    reward: (city, reply) => Number(reply.content === `Sunny.` && asked.includes(city)),
  });
  const call = { reasoning: "I must look.", toolCalls: [{ name: "weather", arguments: { city: "Bern" } }] };
  const episodes = await runWorkflow({ workflow, rows: ["Bern"], n: 2, reply: lines(call, "Sunny.") });
  expect(asked).toEqual(["Bern", "Bern"]);
  for (const { trajectories, metrics } of episodes) {
    expect(trajectories).toMatchObject([
      { reward: 1, steps: [{ reply: { reasoning: "I must look." } }, { text: "Sunny." }] },
    ]);
    expect(metrics).toMatchObject({ tool_calls: 1, turns: 2 });
  }
});
