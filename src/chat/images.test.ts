/** Conversations with images: the model's own tokens at the right places, and prefixes that compare images by hash. */
import { cpSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { beforeEach, describe, expect, test } from "vitest";
import { UserError } from "../base/errors.ts";
import { memoryStore, UnusableImage } from "../images/images.ts";
import { imageLoader } from "../images/load-image.ts";
import { dataUrl, jpeg, png } from "../images/pictures.fixture.ts";
import { temporaryFolder, testFolder } from "../temporary-folder.fixture.ts";
import { characterChat, imageCharacter } from "../testing/scripted.ts";
import { loadChat } from "./chat.ts";
import { openConversation } from "./conversation.ts";
import { placeImages, prepareImages, renderWithImages, type Vision } from "./images.ts";
import type { ChatMessage, Content } from "./messages.ts";
import { joinContents, normalizeContent, sameContent, textOf } from "./messages.ts";

const chat = characterChat();
const store = memoryStore();
const [red, blue] = [png(2, 2, [255, 0, 0]), png(2, 2, [0, 0, 255])];
const [redHash, blueHash] = [store.add(red).hash, store.add(blue).hash];
const blueFile = join(temporaryFolder("images"), "blue.png");
writeFileSync(blueFile, blue);
const begin = "[";
const placeholder = { text: imageCharacter, id: chat.encode(imageCharacter)[0]! };
/** `[￼￼]`: as models that put marks around an image. */
const own = Int32Array.from([...chat.encode(begin), placeholder.id, placeholder.id, ...chat.encode("]")]);
const vision: Vision = {
  placeholder,
  tokensOf: async (images) => images.map(() => own),
  loader: imageLoader(store),
};
const image = (source: Uint8Array | string) => ({ type: "image" as const, image: source });
const text = (words: string) => ({ type: "text" as const, text: words });
const user = (...content: (string | Exclude<Content, string>[number])[]): ChatMessage => ({
  role: "user",
  content: content.map((part) => (typeof part === "string" ? text(part) : part)),
});
const sample = (words: string) => ({ tokens: chat.encode(`${words}<|end|>`) });

async function turn(conversation: ReturnType<typeof openConversation>, ...messages: ChatMessage[]) {
  const { messages: prepared, images } = await prepareImages(messages, vision);
  return conversation.beginLater(prepared, {}, { images });
}
const shown = (tokens: Int32Array) => chat.decode(tokens);
const places = (media: readonly { at: number; length: number; hash: string }[] = []) =>
  media.map(({ at, length, hash }) => [at, length, hash === redHash ? "red" : hash === blueHash ? "blue" : hash]);

describe("a prompt", () => {
  test("has an image's tokens in the image's place", async () => {
    const { prompt, media, starts } = await turn(
      openConversation(chat),
      user("a", image(red), "b", image(dataUrl(blue))),
    );
    expect(shown(prompt)).toBe(
      `<|user|>a[${imageCharacter}${imageCharacter}]b[${imageCharacter}${imageCharacter}]<|end|><|assistant|>`,
    );
    expect(places(media)).toEqual([
      [2, 4, "red"],
      [7, 4, "blue"],
    ]);
    expect(starts).toBe("new_conversation");
  });

  test("without images is what a text model gets, in parts too", async () => {
    for (const messages of [[user("a", "b")], [{ role: "user", content: "ab" } as const]]) {
      const { prompt, media } = await turn(openConversation(chat), ...messages);
      expect([[...prompt], media]).toEqual([
        [...openConversation(chat).begin([{ role: "user", content: "ab" }]).prompt],
        undefined,
      ]);
    }
  });

  test("continues the exact tokens of an earlier call, with its images and new ones", async () => {
    const conversation = openConversation(chat);
    const first = await turn(conversation, user("look: ", image(red)));
    const reply = { role: "assistant", content: first.record(sample("red")).content } as const;
    const next = await turn(conversation, user("look: ", image(dataUrl(red))), reply, user(image(blue), "and this?"));
    expect(next.starts).toBe(undefined);
    expect([...next.prompt.subarray(0, first.prompt.length)]).toEqual([...first.prompt]);
    expect(shown(next.prompt.subarray(first.prompt.length))).toBe(
      `red<|end|><|user|>[${imageCharacter}${imageCharacter}]and this?<|end|><|assistant|>`,
    );
    const at = first.prompt.length + 5;
    expect(places(next.media)).toEqual([
      [7, 4, "red"],
      [at, 4, "blue"],
    ]);
    for (const { at, length } of next.media!) expect([...next.prompt.subarray(at, at + length)]).toEqual([...own]);
    // A third turn, which continues the second.
    const second = { role: "assistant", content: next.record(sample("blue")).content } as const;
    const third = await turn(
      conversation,
      user("look: ", image(red)),
      reply,
      user(image(blue), "and this?"),
      second,
      user("?"),
    );
    expect([third.starts, places(third.media)]).toEqual([undefined, places(next.media)]);
  });

  test("after a reply that was cut off places a new image after the end of the turn", async () => {
    const conversation = openConversation(chat);
    const first = await turn(conversation, user("hi"));
    first.record({ tokens: chat.encode("he") });
    const next = await turn(conversation, user("hi"), { role: "assistant", content: "he" }, user(image(red)));
    expect(places(next.media)).toEqual([[first.prompt.length + 4, 4, "red"]]);
    expect([...next.prompt.subarray(next.media![0]!.at)].slice(0, 4)).toEqual([...own]);
  });

  test("starts a new sequence if an image of the same size was replaced", async () => {
    const conversation = openConversation(chat);
    (await turn(conversation, user(image(red)))).record(sample("red"));
    const next = await turn(conversation, user(image(blue)), { role: "assistant", content: "red" }, user("sure?"));
    expect([next.starts, places(next.media)]).toEqual(["history_rewritten", [[1, 4, "blue"]]]);
  });

  test("continues a reply that contains the placeholder, which is only a token there", async () => {
    const conversation = openConversation(chat);
    const first = await turn(conversation, user(image(red)));
    const reply = first.record(sample(`it is ${imageCharacter}`));
    const next = await turn(
      conversation,
      user(image(red)),
      { role: "assistant", content: reply.content },
      user(image(blue)),
    );
    expect([next.starts, places(next.media).map(([, , name]) => name)]).toEqual([undefined, ["red", "blue"]]);
  });

  test("of a tool's result may have images", async () => {
    const conversation = openConversation(chat);
    const asked: ChatMessage[] = [user("draw")];
    const first = await turn(conversation, ...asked);
    first.record(sample("wait"));
    const result: ChatMessage = { role: "tool", content: [image(red), text("done")], toolCallId: "x" };
    const next = await turn(conversation, ...asked, { role: "assistant", content: "wait" }, result);
    expect(shown(next.prompt)).toContain(`<|tool|>[${imageCharacter}${imageCharacter}]done<|end|>`);
    expect(places(next.media)).toHaveLength(1);
  });
});

describe("refused with a sentence that names the message:", () => {
  const blind = "tiny reads only text";
  test.each<[string, ChatMessage, string, (Vision | string)?]>([
    [
      "an image for a text model",
      user("a", image(red)),
      "message 1 (user) has an image, but tiny reads only text",
      blind,
    ],
    [
      "an image of the assistant",
      { role: "assistant", content: [image(red)] },
      "message 1 (assistant) has an image; only user and tool messages may have images",
    ],
    ["an image of the system", { role: "system", content: [image(red)] }, "message 1 (system) has an image; only"],
    [
      "an image that the worker refuses",
      user(image(red)),
      "message 1 (user): the image 123 cannot be used: it is animated",
      { ...vision, tokensOf: () => Promise.reject(new UserError("the image 123 cannot be used: it is animated")) },
    ],
    [
      "a file that the worker refuses, by its name",
      user(image(red), image(blueFile)),
      `message 1 (user): ${blueFile} cannot be used: it is animated`,
      { ...vision, tokensOf: () => Promise.reject(new UnusableImage(blueHash, "it is animated")) },
    ],
    ["a broken image", user(image(Buffer.from("GIF89a"))), "message 1 (user): the image is a GIF, not PNG or JPEG"],
    [
      "a part of another type",
      user({ type: "audio" } as never),
      "part 1 of message 1 (user) is not a text or an image",
    ],
    [
      "a part without an image",
      user({ type: "image" } as never),
      "part 1 of message 1 (user) is not a text or an image",
    ],
    ["null as a part", user(null as never), "part 1 of message 1 (user) is not a text or an image"],
    [
      "too many images",
      user(...Array.from({ length: 65 }, () => image(red))),
      "the messages have 65 images; the limit of a model call is 64",
    ],
    [
      "the placeholder as text",
      { role: "user", content: `what is ${imageCharacter}?` },
      `the prompt has 0 images, but its text contains ${imageCharacter} 1 times`,
    ],
    [
      "the placeholder beside an image",
      user(image(red), imageCharacter),
      `the prompt has 1 images, but its text contains ${imageCharacter} 2 times`,
    ],
  ])("%s", async (_, message, sentence, sees = vision) => {
    await expect(renderWithImages(chat, sees, [message])).rejects.toThrow(sentence);
  });

  test("a missing content", async () => {
    for (const content of [null, undefined, 7]) {
      const messages = [{ role: "user", content: content as never } as ChatMessage];
      await expect(turn(openConversation(chat), ...messages)).rejects.toThrow(
        `message 1 (user) has ${content} as content`,
      );
      expect(() => openConversation(chat).begin(messages)).toThrow("as content");
    }
    expect(() => openConversation(chat).begin([user(image(red))])).toThrow("has a list as content");
  });
});

test("contents are compared and shown in one form", () => {
  const stored = { type: "image" as const, image: store.add(red) };
  const copy = { type: "image" as const, image: { ...store.add(red) } };
  const other = { type: "image" as const, image: store.add(blue) };
  expect(normalizeContent([text("a"), text("b")])).toBe("ab");
  expect(normalizeContent([text("a"), text("b"), stored, text("c")])).toEqual([text("ab"), stored, text("c")]);
  expect(sameContent([text("a"), stored], [text("a"), copy])).toBe(true);
  expect(sameContent([text("a"), stored], [text("a"), other])).toBe(false);
  expect(sameContent([text("a"), stored], [stored, text("a")])).toBe(false);
  expect(sameContent("a", [text("a"), stored])).toBe(false);
  expect(joinContents("a", [stored, text("b")], "c")).toEqual([text("a"), stored, text("bc")]);
  expect(joinContents("a", "b")).toBe("ab");
  expect(textOf([text("a"), stored, text("b")])).toBe("a[image]b");
});

test("placeholders are replaced in order, at the beginning and the end too", () => {
  const [a, b] = [store.add(red), store.add(blue)];
  const tokens = new Map([
    [a.hash, Int32Array.of(9, 1, 9)],
    [b.hash, Int32Array.of(8)],
  ]);
  const placed = placeImages(Int32Array.of(1, 5, 1, 1), [a, b, a], { placeholder: { text: "x", id: 1 }, tokens });
  expect([...placed.tokens]).toEqual([9, 1, 9, 5, 8, 9, 1, 9]);
  expect(placed.media.map(({ at, length }) => [at, length])).toEqual([
    [0, 3],
    [4, 1],
    [5, 3],
  ]);
});

describe("chat templates of vision models", () => {
  let folder: string;
  beforeEach(() => {
    folder = testFolder("chat");
    cpSync(fileURLToPath(new URL("./fixtures/chatml", import.meta.url)), folder, { recursive: true });
  });

  const smolvlm =
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}";
  const qwen =
    "{% set image_count = namespace(value=0) %}{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n{% else %}{% for content in message['content'] %}{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}{% set image_count.value = image_count.value + 1 %}{% if add_vision_id %}Picture {{ image_count.value }}: {% endif %}<|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  const asked = [
    { role: "system", content: "Be brief." },
    { role: "user", content: [{ type: "image", image: store.add(red) }, text("What is it?")] },
    { role: "assistant", content: "Red." },
    { role: "user", content: "Sure?" },
  ] as const satisfies ChatMessage[];

  test("that expect text as parts (SmolVLM) get parts", () => {
    writeFileSync(join(folder, "chat_template.jinja"), smolvlm);
    expect(loadChat(folder).renderText(asked)).toBe(
      "<|im_start|>System: Be brief.<end_of_utterance>\nUser:<image>What is it?<end_of_utterance>\nAssistant: Red.<end_of_utterance>\nUser: Sure?<end_of_utterance>\nAssistant:",
    );
  });

  test("that expect either (Qwen2-VL) get text as text", () => {
    rmSync(join(folder, "chat_template.jinja"));
    writeFileSync(join(folder, "preprocessor_config.json"), "{}");
    writeFileSync(join(folder, "chat_template.json"), JSON.stringify({ chat_template: qwen }));
    const rendered = loadChat(folder).renderText(asked);
    expect(rendered).toContain(
      "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>What is it?<|im_end|>\n<|im_start|>assistant\nRed.<|im_end|>",
    );
  });

  test("JPEG and PNG of one picture are two images", () => {
    expect(store.add(jpeg()).hash).not.toBe(store.add(png()).hash);
  });
});
