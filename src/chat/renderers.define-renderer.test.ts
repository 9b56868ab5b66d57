import { cpSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { beforeEach, expect, test, vi } from "vitest";
import { openChat } from "../backends/backends.ts";
import { importModule } from "../base/import-module.ts";
import { composeConfig } from "../config/compose.ts";
import { testFolder } from "../temporary-folder.fixture.ts";
import { defineRenderer } from "./renderers.ts";

vi.mock("../base/import-module.ts", () => ({ importModule: vi.fn() }));

let folder: string;
beforeEach(() => {
  folder = testFolder("own-renderer");
  cpSync(fileURLToPath(new URL("./fixtures/chatml", import.meta.url)), folder, { recursive: true });
});

const tools = [{ name: "add" }];

/** Opens a model with a renderer file that has this default export. */
function open(renderer: unknown) {
  const path = join(folder, "renderer.ts");
  writeFileSync(path, "");
  vi.mocked(importModule).mockResolvedValue({ default: renderer });
  return openChat(folder, composeConfig({ overrides: [`rollout_engine.renderer_name=${path}`] }).config);
}

test("a renderer of the user's reads thinking and calls, and its errors are problems of the reply", async () => {
  const chat = await open(
    defineRenderer({
      thinking: { open: "<idea>", close: "</idea>" },
      calls: {
        open: "<<",
        close: ">>",
        read(body) {
          const [name = "", ...rest] = body.split("|");
          if (rest.length === 0) throw new Error("it has no bar");
          return { name, arguments: Object.fromEntries(rest.map((each) => each.split("=") as [string, string])) };
        },
      },
      ends: ["<|endoftext|>"],
      template: "{{ tools }}{% for m in messages %}{{ m.content + eos_token }}{% endfor %}",
    }),
  );
  expect(chat.parse("<idea>so</idea>Well. <<add|a=1>><<add>>", { tools })).toEqual({
    reasoning: "so",
    content: "Well. <<add>>",
    toolCalls: [{ id: "call_0", name: "add", arguments: { a: "1" }, argumentsText: '{"a":"1"}' }],
    problems: [{ kind: "malformed_tool_call", message: "a tool call cannot be read: it has no bar", text: "<<add>>" }],
  });
  expect(chat.stopIds).toContain(chat.encode("<|endoftext|>")[0]);
  expect(chat.renderText([{ role: "user", content: "hello" }])).toMatch(/hello<\|im_end\|>$/);
});

test("a file without a renderer is refused", async () => {
  for (const wrong of [undefined, {}, { thinking: undefined }]) {
    await expect(open(wrong)).rejects.toThrow("its default export is not a renderer");
  }
});

test("a missing file and a wrong definition are refused with the place", async () => {
  const { config } = composeConfig({ overrides: ["rollout_engine.renderer_name=./nowhere.ts"] });
  await expect(openChat(folder, config)).rejects.toThrow(
    "rollout_engine.renderer_name=./nowhere.ts: the file does not exist",
  );
  expect(() => defineRenderer({ thinking: { open: "", close: "x" } })).toThrow("open");
  expect(() => defineRenderer({ call: {} } as never)).toThrow("call");
  expect(() => defineRenderer({ calls: { open: "a", close: "b" } } as never)).toThrow("read");
});
