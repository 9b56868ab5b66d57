import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import { convertToGguf, findConverter } from "./gguf.ts";

const root = temporaryFolder("gguf");
const script = join(root, "convert_hf_to_gguf.py");
const installed = { PATH: `/nowhere:${root}` };

/** In place of llama.cpp's: writes its arguments into the file, or fails. */
function write(...lines: string[]) {
  writeFileSync(script, ["#!/bin/sh", ...lines].join("\n"));
  chmodSync(script, 0o755);
}

test("the converter of LLAMA_CPP runs in Hone's Python, one on the PATH by itself; none is refused", () => {
  write("true");
  const [python, file] = findConverter({ LLAMA_CPP: root, PATH: "/nowhere" });
  expect([python !== undefined, file]).toEqual([true, script]);
  expect(findConverter(installed)).toEqual([script]);
  expect(() => findConverter({ PATH: "/nowhere" })).toThrow("convert_hf_to_gguf.py is not installed");
  mkdirSync(join(root, "empty"));
  expect(() => findConverter({ LLAMA_CPP: join(root, "empty") })).toThrow("does not contain convert_hf_to_gguf.py");
});

test("the file appears when it is complete, and a failure leaves nothing and quotes the converter", async () => {
  write('echo "$@" > "$3"');
  const file = join(root, "my-model.gguf");
  await convertToGguf(findConverter(installed), "./model", file);
  expect(readFileSync(file, "utf8")).toMatch(/^\.\/model --outfile \S+ --outtype auto --model-name my-model\n$/);
  write('echo half > "$3"', "echo 'unknown architecture' >&2", "exit 1");
  const failing = convertToGguf(findConverter(installed), "./model", join(root, "other.gguf"));
  await expect(failing).rejects.toThrow("llama.cpp's converter failed: unknown architecture");
  expect([existsSync(join(root, "other.gguf")), readdirSync(root).filter((name) => name.includes("partial"))]).toEqual([
    false,
    [],
  ]);
});
