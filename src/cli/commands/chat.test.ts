import { describe, expect, it } from "vitest";
import { composeConfig } from "../../config/compose.ts";
import type { ConfigInput } from "../../config/schema.ts";
import { UserError } from "../../errors.ts";
import { type Script, scriptedSampler } from "../../testing/index.ts";
import { answer, replyLimit } from "./chat.ts";

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

  it("says where a reply was cut off, and leaves room for the conversation", async () => {
    expect((await ask(() => "a long reply", { maxTokens: 3 })).printed).toBe("a l [cut off after 3 tokens]\n");
    expect((await ask(() => "a long reply", { maxLength: 10 })).printed).toBe("a  [cut off after 2 tokens]\n");
    await expect(ask(() => "31", { maxLength: 8 })).rejects.toThrow(UserError);
  });

  it.each<[string, ConfigInput, string[], number]>([
    ["8 tokens of the run's data", { data: { max_response_length: 8 } }, [], 2048],
    ["8 tokens of the run's validation", { rllm: { rollout: { val: { max_tokens: 8 } } } }, [], 2048],
    ["what is typed", { data: { max_response_length: 8 } }, ["rllm.rollout.val.max_tokens=64"], 64],
    ["what is typed under another name", {}, ["data.max_response_length=32"], 32],
    [
      "what is typed over a resolved limit",
      { rllm: { rollout: { val: { max_tokens: 8 } } } },
      ["data.max_response_length=32"],
      32,
    ],
  ])("takes no limit of the run, but one that is typed: %s", (_, input, overrides, limit) => {
    expect(replyLimit(composeConfig({ input, overrides }))).toBe(limit);
  });
});
