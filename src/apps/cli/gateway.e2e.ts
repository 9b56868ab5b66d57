/** `hone gateway` as a process, with a real model, official clients, and SIGTERM at the end. */
import type { ChildProcess } from "node:child_process";
import { join } from "node:path";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { makeTinyModel } from "../../base/python.fixture.ts";
import { parseLines } from "../../json-lines.fixture.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { runHone, startHone } from "./hone.fixture.ts";

const root = temporaryFolder("gateway");
const store = join(root, "traces.db");

let gateway: ChildProcess;
let said = "";
let origin: string;

beforeAll(async () => {
  const model = await makeTinyModel(join(root, "model"));
  const args = [
    ...["gateway", `model.name=${model}`, "rollout_engine.renderer_name=hermes", "--port", "0"],
    ...[`rllm.sdk.store.path=${store}`, "data.max_response_length=24", "data.max_prompt_length=2048"],
    ...["local.device=cpu", "local.dtype=float32", "local.threads=1"],
  ];
  gateway = startHone(args);
  origin = await new Promise((resolve, reject) => {
    for (const stream of [gateway.stdout!, gateway.stderr!]) {
      stream.setEncoding("utf8").on("data", (text: string) => {
        said += text;
        const [address] = /http:\/\/127\.0\.0\.1:\d+/.exec(said) ?? [];
        if (address !== undefined) resolve(address);
      });
    }
    gateway.once("close", () => reject(new Error(`the gateway ended: ${said}`)));
  });
});
afterAll(() => {
  gateway.kill("SIGKILL");
});

const session = (name: string) => `${origin}/s/${name}/a/0`;
const messages = [{ role: "user" as const, content: "Say something." }];
const parameters = { type: "object" as const, properties: { city: { type: "string" } }, required: ["city"] };

describe("hone gateway", () => {
  const openai = (name: string) => new OpenAI({ baseURL: `${session(name)}/v1`, apiKey: "any" });
  const tools = [{ type: "function" as const, function: { name: "weather", description: "Tells it.", parameters } }];

  test("the openai client: n, seed, log-probabilities, tools", async () => {
    const ask = async (seed: number) => {
      const { choices, usage } = await openai("chat").chat.completions.create({
        ...{ model: "any", messages, tools, n: 2, seed, max_tokens: 12, logprobs: true, top_logprobs: 2 },
      });
      const tokens = choices.map(({ logprobs }) => logprobs!.content!);
      expect(usage!.completion_tokens).toBe(tokens.flat().length);
      for (const { logprob, top_logprobs } of tokens.flat()) {
        expect(logprob).toBeLessThanOrEqual(0);
        expect(top_logprobs).toHaveLength(2);
        expect(top_logprobs[0]!.logprob).toBeGreaterThanOrEqual(logprob - 1e-5);
      }
      return tokens.map((each) => each.map(({ token, logprob }) => `${token} ${logprob.toFixed(3)}`));
    };
    const first = await ask(7);
    expect(first[0]).not.toEqual(first[1]);
    // The seed alone decides, not earlier requests.
    expect(await ask(7)).toEqual(first);
    expect(await ask(8)).not.toEqual(first);
  });

  test("the base URL that it prints answers without a session", async () => {
    const [baseURL] = /http:\/\/[\d.:]+\/v1(?= \(OpenAI's clients\))/.exec(said)!;
    const client = new OpenAI({ baseURL, apiKey: "any" });
    const ask = (content: string) =>
      client.chat.completions.create({ model: "any", messages: [{ role: "user", content }], max_tokens: 4, seed: 1 });
    const both = await Promise.all([ask("Say a."), ask("Say b.")]);
    for (const { usage } of both) expect(usage!.completion_tokens).toBeGreaterThan(0);
  });

  test("the openai client: a stream gives the same text as the whole reply", async () => {
    const asked = { model: "any", messages, seed: 3, temperature: 0.7 };
    const whole = await openai("stream").chat.completions.create(asked);
    const stream = openai("stream").chat.completions.stream({ ...asked, stream_options: { include_usage: true } });
    const streamed = await stream.finalChatCompletion();
    const told = ({ choices: [choice], usage }: OpenAI.ChatCompletion) => {
      const { prompt_tokens, completion_tokens } = usage!;
      return [choice!.message.content, choice!.finish_reason, prompt_tokens, completion_tokens];
    };
    expect(told(streamed)).toEqual(told(whole));
    // The reply ends where the stop string begins.
    const content = whole.choices[0]!.message.content!;
    const stop = content[5]!;
    const stopped = await openai("stream").chat.completions.create({ ...asked, stop });
    expect(stopped.choices[0]).toMatchObject({
      message: { content: content.slice(0, content.indexOf(stop)) },
      finish_reason: "stop",
    });
  });

  test("the openai client: a JSON schema, responses, completions, models", async () => {
    const client = openai("others");
    const json_schema = { name: "place", schema: parameters };
    const wished = {
      model: "any",
      messages,
      max_tokens: 8,
      response_format: { type: "json_schema" as const, json_schema },
    };
    const plain = await client.chat.completions.create({ model: "any", messages, max_tokens: 8 });
    const told = await client.chat.completions.create(wished);
    // The prompt describes the schema but does not enforce it; a strict schema is refused.
    expect(told.usage!.prompt_tokens).toBeGreaterThan(plain.usage!.prompt_tokens + JSON.stringify(parameters).length);
    const strict = {
      ...wished,
      response_format: { type: "json_schema" as const, json_schema: { ...json_schema, strict: true } },
    };
    await expect(client.chat.completions.create(strict)).rejects.toThrow(/400.*cannot be guaranteed/);

    const response = await client.responses.create({ model: "any", input: "Say something.", max_output_tokens: 8 });
    expect(response.usage!.output_tokens).toBeLessThanOrEqual(8);
    const completion = await client.completions.create({ model: "any", prompt: "Say", max_tokens: 4, logprobs: 0 });
    expect(completion.choices[0]!.logprobs!.token_logprobs).toHaveLength(completion.usage!.completion_tokens);
    expect((await client.models.list()).data).toHaveLength(1);
  });

  test("the Anthropic client, whole and streamed", async () => {
    const client = new Anthropic({ baseURL: session("anthropic"), apiKey: "any" });
    const asked = {
      ...{ model: "any", max_tokens: 10, system: "Be short.", messages },
      tools: [{ name: "weather", input_schema: parameters }],
    };
    const whole = await client.messages.create(asked);
    expect(whole.usage.output_tokens).toBeLessThanOrEqual(10);
    expect((await client.messages.countTokens(asked)).input_tokens).toBe(whole.usage.input_tokens);
    const streamed = await client.messages.stream(asked).finalMessage();
    expect(streamed.usage.input_tokens).toBe(whole.usage.input_tokens);
    expect(["end_turn", "max_tokens", "tool_use"]).toContain(streamed.stop_reason);
  });

  test("ends at SIGTERM, with every answered call in the store", async () => {
    const ended = new Promise<unknown>((resolve) => gateway.once("close", (...how) => resolve(how)));
    gateway.kill("SIGTERM");
    expect(await ended, said).toEqual([0, null]);
    const { stdout } = runHone(["traces", "list", "--json", "--store", store]);
    const sessions = parseLines<{ session: string; calls: number }>(stdout);
    expect(Object.fromEntries(sessions.map((each) => [each.session, each.calls]))).toEqual({
      ...{ chat: 6, default: 2, stream: 3, others: 4, anthropic: 2 },
    });
  });
});
