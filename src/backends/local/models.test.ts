import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { beforeAll, describe, expect, it } from "vitest";
import { UserError } from "../../base/errors.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { modelSource } from "./models.ts";

const root = temporaryFolder("models");
const at = (...parts: string[]): string => join(root, ...parts);

beforeAll(() => {
  for (const [folder, file] of [
    ["good", "config.json"],
    ["adapter", "adapter_config.json"],
    ["empty", "notes.txt"],
  ] as const) {
    mkdirSync(at(folder));
    writeFileSync(at(folder, file), "{}");
  }
  writeFileSync(at("weights.gguf"), "GGUF");
  writeFileSync(at("weights.bin"), "");
});

describe("modelSource", () => {
  it.each([
    ["smollm2-135m-instruct", { kind: "package" }],
    ["SmolLM2-135M-Instruct", { kind: "package" }],
    [at("good"), { kind: "path", path: at("good") }],
    [at("weights.gguf"), { kind: "path", path: at("weights.gguf") }],
    ["HuggingFaceTB/SmolLM2-135M-Instruct", { kind: "hub", id: "HuggingFaceTB/SmolLM2-135M-Instruct" }],
  ])("%s", (name, source) => expect(modelSource(name)).toMatchObject(source));

  it.each([
    ["smollm2", "not an alias", "Did you mean smollm2-135m-instruct?"],
    ["smolm2-135m-instuct", "not an alias", "Did you mean smollm2-135m-instruct?"],
    ["gpt", "not an alias", "Aliases: smollm2-135m-instruct."],
    ["./nowhere", "nowhere does not exist", "Check the path"],
    ["nowhere.gguf", "nowhere.gguf does not exist", "Check the path"],
    [at("empty"), "no config.json", "has config.json"],
    [at("adapter"), "no config.json", "This is an adapter"],
    [at("weights.bin"), "not a .gguf file", "Use a .gguf file"],
  ])("refuses %s and says what to do", (name, message, hint) => {
    const failure = (() => {
      try {
        return modelSource(name);
      } catch (error) {
        return error;
      }
    })();
    expect(failure).toBeInstanceOf(UserError);
    expect((failure as UserError).message).toContain(message);
    expect((failure as UserError).hint).toContain(hint);
  });
});
