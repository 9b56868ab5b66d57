/** Compares the first example's tokenizer and template, as the worker converts them, with transformers. */
import { mkdtempSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { openLocalEngine } from "../backends/local/engine.ts";
import { removeFolder } from "../temporary-folder.fixture.ts";
import { loadChat } from "./chat.ts";

test("SmolLM2 gives the same tokens and text as transformers", async () => {
  const logs = mkdtempSync(join(tmpdir(), "hone-smollm2-"));
  const engine = await openLocalEngine({
    model: "smollm2-135m-instruct",
    device: "cpu",
    logFile: join(logs, "worker.log"),
  });
  try {
    const chat = loadChat(engine.model.directory);
    const goldens = JSON.parse(readFileSync(new URL("./fixtures/smollm2.json", import.meta.url), "utf8"));
    expect([chat.bosId, chat.eosId, chat.padId]).toEqual(goldens.ids);
    expect(engine.model.eosTokenIds).toContain(chat.eosId);
    for (const { text, plain, special } of goldens.encoded) {
      expect([...chat.encode(text)], text).toEqual(plain);
      expect([...chat.encode(text, { addSpecial: true })], text).toEqual(special);
    }
    for (const { tokens, whole, skipped } of goldens.decoded) {
      expect(chat.decode(tokens)).toBe(whole);
      expect(chat.decode(tokens, { skipSpecial: true })).toBe(skipped);
    }
    for (const { messages, options, text, tokens } of goldens.rendered) {
      expect(chat.renderText(messages, options)).toBe(text);
      expect([...chat.render(messages, options)]).toEqual(tokens);
    }
  } finally {
    await engine.close();
    removeFolder(logs);
  }
});
