import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { temporaryFolder } from "../../../temporary-folder.fixture.ts";
import { readModelShapes } from "./model-shapes.ts";

const root = temporaryFolder("shapes");
const config = { num_hidden_layers: 2, hidden_size: 8, vocab_size: 32, intermediate_size: 20 };
const header = JSON.stringify({
  __metadata__: { format: "pt" },
  a: { dtype: "F32", shape: [2, 3], data_offsets: [0, 24] },
});

function folderWith(name: string, files: Readonly<Record<string, string | Buffer>>): string {
  const folder = join(root, name);
  mkdirSync(folder);
  for (const [file, content] of Object.entries(files)) writeFileSync(join(folder, file), content);
  return folder;
}

function safetensors(text: string): Buffer {
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  return Buffer.concat([length, Buffer.from(text), Buffer.alloc(24)]);
}

test("reads shapes from the headers of all files, and sizes from the configuration", () => {
  const files = { "1.safetensors": safetensors(header), "2.safetensors": safetensors(header.replace('"a"', '"b"')) };
  const folder = folderWith("plain", { ...files, "config.json": JSON.stringify(config) });
  expect(readModelShapes(folder)).toEqual({
    weights: new Map(["a", "b"].map((name) => [name, [2, 3]])),
    ...{ layers: 2, hiddenSize: 8, vocabularySize: 32, innerSize: 20 },
  });
  const nested = folderWith("nested", { ...files, "config.json": JSON.stringify({ text_config: config }) });
  expect(readModelShapes(nested)).toEqual(readModelShapes(folder));
});

test.each([
  ["a folder that does not exist", {}],
  ["no weights", { "config.json": JSON.stringify(config) }],
  ["no sizes", { "config.json": "{}", "1.safetensors": safetensors(header) }],
  ["a damaged file", { "config.json": JSON.stringify(config), "1.safetensors": Buffer.alloc(8, 255) }],
])("%s: unknown", (name, files) => {
  const folder = Object.keys(files).length === 0 ? join(root, name) : folderWith(name, files);
  expect(readModelShapes(folder)).toBeUndefined();
});
