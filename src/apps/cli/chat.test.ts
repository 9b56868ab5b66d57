import { Readable } from "node:stream";
import { describe, expect, it } from "vitest";
import { UserError } from "../../base/errors.ts";
import type { ChatMessage } from "../../chat/messages.ts";
import { composeConfig } from "../../config/compose.ts";
import type { ConfigInput } from "../../config/schema.ts";
import { dataUrl, png } from "../../images/pictures.fixture.ts";
import { type Script, scriptedSampler } from "../../testing/index.ts";
import { answer, converse, replyLimit } from "./chat.ts";

async function ask(script: Script, limits: { maxTokens?: number; maxLength?: number } = {}) {
  let printed = "";
  const turn = {
    ...scriptedSampler(script),
    ...{ maxTokens: 100, maxLength: 1000, ...limits },
    sampling: composeConfig().config.rllm.rollout.val,
    print: (text: string) => {
      printed += text;
    },
  };
  return { message: await answer(turn, [{ role: "user", content: "hello" }]), printed };
}

describe("hone chat", () => {
  it("prints a reply without the mark that ends it, and keeps it out of the history", async () => {
    const { message, printed } = await ask(() => "31");
    expect(printed).toBe("31\n");
    expect(message).toEqual({ role: "assistant", content: "31" });
  });

  it("hands thinking back to the template as thinking", async () => {
    const { message } = await ask(() => ({ reasoning: "31 > 12", text: "31" }));
    expect(message).toEqual({ role: "assistant", content: "31", reasoning: "31 > 12" });
  });

  it("answers lines that arrive during a reply, up to an empty one", async () => {
    const messages: ChatMessage[] = [];
    const turn = { ...scriptedSampler(() => "31"), maxTokens: 100, maxLength: 1000, print: () => {} };
    const sampling = composeConfig().config.rllm.rollout.val;
    await converse({ ...turn, sampling }, messages, Readable.from(["12 or 31?\n5 or 7?\n", "1 or 2?\n\n3 or 4?\n"]));
    const asked = messages.filter(({ role }) => role === "user").map(({ content }) => content);
    expect(asked).toEqual(["12 or 31?", "5 or 7?", "1 or 2?"]);
    expect(messages.length).toBe(6);
  });

  it("goes on after an image that the worker refuses", async () => {
    const messages: ChatMessage[] = [];
    let printed = "";
    const { vision, ...scripted } = scriptedSampler(() => "31");
    const refusing = { ...vision, tokensOf: () => Promise.reject(new UserError("it is animated")) };
    const print = (text: string) => {
      printed += text;
    };
    const sampling = composeConfig().config.rllm.rollout.val;
    const turn = { ...scripted, vision: refusing, maxTokens: 100, maxLength: 1000, print, sampling };
    await converse(turn, messages, Readable.from([`/image ${dataUrl(png())}\n12 or 31?\n\n`]));
    expect(printed).toBe("it is animated\n31\n");
    expect(messages.map(({ content }) => content)).toEqual(["12 or 31?", "31"]);
  });

  it("prints where a reply was cut off, and counts the conversation towards the limit", async () => {
    expect((await ask(() => "a long reply", { maxTokens: 3 })).printed).toBe("a l [cut off after 3 tokens]\n");
    expect((await ask(() => "a long reply", { maxLength: 10 })).printed).toBe("a  [cut off after 2 tokens]\n");
    await expect(ask(() => "31", { maxLength: 8 })).rejects.toThrow(UserError);
  });

  it.each<[string, ConfigInput, string[], number]>([
    ["8 tokens of the run's data", { data: { max_response_length: 8 } }, [], 2048],
    ["8 tokens of the run's validation", { rllm: { rollout: { val: { max_tokens: 8 } } } }, [], 2048],
    ["the typed limit", { data: { max_response_length: 8 } }, ["rllm.rollout.val.max_tokens=64"], 64],
    ["a limit typed under another name", {}, ["data.max_response_length=32"], 32],
    [
      "a typed limit that replaces a resolved one",
      { rllm: { rollout: { val: { max_tokens: 8 } } } },
      ["data.max_response_length=32"],
      32,
    ],
  ])("ignores limits of the run, except typed ones: %s", (_, input, overrides, limit) => {
    expect(replyLimit(composeConfig({ input, overrides }))).toBe(limit);
  });
});
