/** Images of every client reach the model, and are recorded once by hash; what is not an image is refused. */
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import Anthropic from "@anthropic-ai/sdk";
import { generateText, type ToolResultPart } from "ai";
import OpenAI from "openai";
import { afterEach, describe, expect, test } from "vitest";
import { memoryStore } from "../images/images.ts";
import { dataUrl, png } from "../images/pictures.fixture.ts";
import { imageCharacter } from "../testing/scripted.ts";
import { type TestGatewayOptions, testGateway } from "./open-gateway.fixture.ts";

const picture = png(4, 3);
const { hash } = memoryStore().add(picture);
const base64 = picture.toString("base64");
const asked = `${imageCharacter}What is it?`;

let opened: Awaited<ReturnType<typeof testGateway>>;
afterEach(() => opened.close());

const open = async (options: Partial<TestGatewayOptions> = {}) => {
  opened = await testGateway({ reply: (messages) => `I see: ${messages.at(-1)!.content}`, ...options });
  return opened.entry;
};

const openai = () => new OpenAI({ baseURL: opened.entry.baseURL, apiKey: "any", maxRetries: 0 });
const anthropic = () => new Anthropic({ baseURL: opened.entry.anthropicBaseURL, apiKey: "any", maxRetries: 0 });

const clients: Record<string, () => Promise<string | null | undefined>> = {
  async "openai, chat"() {
    const content = [
      { type: "image_url" as const, image_url: { url: dataUrl(picture) } },
      { type: "text" as const, text: "What is it?" },
    ];
    const reply = await openai().chat.completions.create({ model: "policy", messages: [{ role: "user", content }] });
    return reply.choices[0]?.message.content;
  },
  async "openai, responses"() {
    const content = [
      { type: "input_image" as const, image_url: dataUrl(picture), detail: "auto" as const },
      { type: "input_text" as const, text: "What is it?" },
    ];
    return (await openai().responses.create({ model: "policy", input: [{ role: "user", content }] })).output_text;
  },
  async anthropic() {
    const image = { type: "base64" as const, media_type: "image/png" as const, data: base64 };
    const content = [
      { type: "image" as const, source: image },
      { type: "text" as const, text: "What is it?" },
    ];
    const body = { model: "policy", max_tokens: 50, messages: [{ role: "user" as const, content }] };
    expect(await anthropic().messages.countTokens({ model: "policy", messages: body.messages })).toEqual({
      input_tokens: asked.length + 3,
    });
    const [block] = (await anthropic().messages.create(body)).content;
    return block?.type === "text" ? block.text : undefined;
  },
  async "the AI SDK"() {
    const provider = createOpenAICompatible({ name: "hone", baseURL: opened.entry.baseURL, apiKey: "any" });
    const content = [
      { type: "file" as const, data: new Uint8Array(picture), mediaType: "image/png" },
      { type: "text" as const, text: "What is it?" },
    ];
    return (await generateText({ model: provider("policy"), messages: [{ role: "user", content }], maxRetries: 0 }))
      .text;
  },
};

test.each(Object.entries(clients))("%s", async (_, ask) => {
  await open();
  expect(await ask()).toBe(`I see: ${asked}`);
  const [step] = opened.steps();
  expect(step?.media).toEqual([{ at: 1, length: 1, hash }]);
  const stored = { hash, type: "image/png", width: 4, height: 3, bytes: picture.length };
  const content = [
    { type: "image", image: stored },
    { type: "text", text: "What is it?" },
  ];
  expect(step?.messages).toEqual([{ role: "user", content }]);
  const [trace] = [...opened.store.traces({ session: "train-1/task:0", attempt: 0 })];
  expect(trace?.messages).toEqual([{ role: "user", content }]);
});

test("a conversation continues with its images, and a tool's result may be one", async () => {
  await open();
  const image = { type: "image_url" as const, image_url: { url: dataUrl(picture), detail: "low" as const } };
  const first = [{ role: "user" as const, content: [image] }];
  const reply = (await openai().chat.completions.create({ model: "policy", messages: first })).choices[0]!.message;
  const more = { role: "tool" as const, tool_call_id: "x", content: [image] as never };
  await openai().chat.completions.create({ model: "policy", messages: [...first, reply, more] });
  const [one, two] = opened.steps();
  expect(two?.starts).toBe(undefined);
  expect(two?.media?.map(({ at }) => at)).toEqual([1, one!.promptTokens.length + one!.tokens.length + 1]);
  expect(opened.gateway.counts()).toMatchObject({ "gateway/ignored_parameter/detail": 3 });
});

test("an image in a tool's result of the AI SDK is an image, not the text of its base64", async () => {
  await open();
  const provider = createOpenAICompatible({ name: "hone", baseURL: opened.entry.baseURL, apiKey: "any" });
  const call = { toolCallId: "x", toolName: "look" };
  const ask = (value: Extract<ToolResultPart["output"], { type: "content" }>["value"]) =>
    generateText({
      model: provider("policy"),
      maxRetries: 0,
      messages: [
        { role: "user", content: "Look." },
        { role: "assistant", content: [{ type: "tool-call", ...call, input: {} }] },
        { role: "tool", content: [{ type: "tool-result", ...call, output: { type: "content", value } }] },
      ],
    });
  await ask([
    { type: "text", text: "Here: " },
    { type: "image-data", data: base64, mediaType: "image/png" },
  ]);
  const [step] = opened.steps();
  expect(step?.media).toMatchObject([{ hash }]);
  expect(step?.messages.at(-1)?.content).toMatchObject([{ type: "text", text: "Here: " }, { type: "image" }]);
  expect(opened.gateway.counts()).toMatchObject({ "gateway/images_in_json": 1 });
  await ask([{ type: "text", text: "no image" }]);
  expect(opened.steps().at(-1)?.messages.at(-1)?.content).toBe('[{"type":"text","text":"no image"}]');
});

const chat = (...parts: unknown[]) => ({
  path: "/chat/completions",
  body: { messages: [{ role: "user", content: parts }] },
});
const responses = (...parts: unknown[]) => ({
  path: "/responses",
  body: { input: [{ role: "user", content: parts }] },
});
const messages = (...parts: unknown[]) => ({
  path: "/messages",
  body: { max_tokens: 9, messages: [{ role: "user", content: parts }] },
});
const url = (value: unknown) => ({ type: "image_url", image_url: { url: value } });
const source = (value: unknown) => ({ type: "image", source: value });

describe("refused:", () => {
  test.each<[string, { path: string; body: object }, string]>([
    [
      "a file of this machine",
      chat(url("/etc/passwd")),
      "messages[0].content[0].image_url must be a data URL or an http(s) address",
    ],
    ["a file's URL", chat(url("file:///etc/hostname")), "must be a data URL or an http(s) address"],
    ["no address", chat(url(undefined)), "must be a data URL or an http(s) address"],
    [
      "an address, by default",
      chat(url("http://127.0.0.1:1/a.png")),
      "message 1 (user): the image's address cannot be used",
    ],
    [
      "an address of Anthropic",
      messages(source({ type: "url", url: "http://[::1]/" })),
      "the image's address cannot be used",
    ],
    ["a number as address", chat(url(7)), "must be a data URL or an http(s) address"],
    [
      "an image that is not one",
      chat(url("data:image/png;base64,aGVsbG8=")),
      "message 1 (user): the image is in an unknown format",
    ],
    [
      "a GIF",
      chat(url(`data:image/gif;base64,${Buffer.from("GIF89a").toString("base64")}`)),
      "message 1 (user): the data URL is of type image/gif",
    ],
    [
      "65 images",
      chat(...Array.from({ length: 65 }, () => url(dataUrl(picture)))),
      "the messages have 65 images; the limit of a model call is 64",
    ],
    ["audio", chat({ type: "input_audio", input_audio: {} }), "messages[0].content[0] is of type input_audio"],
    ["a document", chat({ type: "file", file: {} }), "messages[0].content[0] is of type file"],
    ["a file's id", responses({ type: "input_image", file_id: "file-1" }), "the gateway has no files"],
    [
      "an image without a source",
      messages(source(undefined)),
      "messages.0.content.0.source must be base64 with media_type and data, or a url",
    ],
    ["a file's id of Anthropic", messages(source({ type: "file", file_id: "x" })), "source must be base64"],
    [
      "base64 that is none",
      messages(source({ type: "base64", media_type: "image/png", data: "%%" })),
      "message 1 (user): the image is not valid base64",
    ],
    [
      "a type that is not the image's",
      messages(source({ type: "base64", media_type: "image/jpeg", data: base64 })),
      "the data URL says image/jpeg, but the image is image/png",
    ],
    [
      "an image in a system message",
      { path: "/chat/completions", body: { messages: [{ role: "system", content: [url(dataUrl(picture))] }] } },
      "messages[0].content[0] is of type image_url",
    ],
    [
      "an image of the assistant",
      { path: "/chat/completions", body: { messages: [{ role: "assistant", content: [url(dataUrl(picture))] }] } },
      "is of type image_url",
    ],
    [
      "the placeholder as text",
      chat({ type: "text", text: `is ${imageCharacter} an image?` }),
      "the prompt has 0 images, but its text contains",
    ],
  ])("%s", async (_, { path, body }, sentence) => {
    const { baseURL } = await open();
    const response = await fetch(`${baseURL}${path}`, {
      method: "POST",
      body: JSON.stringify({ model: "policy", ...body }),
      headers: { "content-type": "application/json" },
    });
    const { error } = (await response.json()) as { error: { message: string } };
    expect([response.status, error.message]).toEqual([400, expect.stringContaining(sentence)]);
    expect(opened.steps()).toEqual([]);
    expect(opened.session.problems.map(({ message }) => message)).toEqual([expect.stringContaining(sentence)]);
  });

  test("every image, by a model that reads only text; its trace has no bytes", async () => {
    await open({ vision: "policy reads only text" });
    await expect(clients["openai, chat"]!()).rejects.toThrow(
      "message 1 (user) has an image, but policy reads only text",
    );
    const [trace] = [...opened.store.traces({ session: "train-1/task:0", attempt: 0 })];
    expect(JSON.stringify(trace?.messages)).not.toContain(base64);
  });
});
