import { setTimeout as sleep } from "node:timers/promises";
import { expect, test } from "vitest";
import { z } from "zod";
import { defineTool } from "../agents/define-tool.ts";
import { useTools } from "../agents/use-tools.ts";
import type { Sample, SamplingParams } from "../backends/engine.ts";
import { plainParams } from "../backends/sampling-params.ts";
import { runWorkflow } from "./run-workflow.ts";
import { lines, type Script, scriptedSampler } from "./scripted-sampler.ts";

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
