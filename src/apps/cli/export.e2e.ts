/** `hone export --as gguf` with llama.cpp's own converter, which the sources of llama-cpp-python contain. */
import { execFileSync } from "node:child_process";
import { mkdirSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";
import { knownPython } from "../../base/python.ts";
import { nightly } from "../../nightly.fixture.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { outputOf, startHone } from "./hone.fixture.ts";

const root = temporaryFolder("gguf");

/** Version 0.3.36, through pip. */
function sourcesOfLlamaCpp(): string {
  const folder = join(root, "llama.cpp");
  mkdirSync(folder);
  const wanted = ["--no-deps", "--no-binary", "llama-cpp-python", "llama-cpp-python==0.3.36"];
  execFileSync("python3", ["-m", "pip", "download", "--quiet", ...wanted], { cwd: root });
  const archive = readdirSync(root).find((name) => name.endsWith(".tar.gz"))!;
  const parts = ["convert_hf_to_gguf.py", "conversion", "gguf-py"].map((name) => `*/vendor/llama.cpp/${name}*`);
  execFileSync("tar", ["-xzf", archive, "-C", folder, "--strip-components=3", "--wildcards", ...parts], { cwd: root });
  return folder;
}

const read = `
import json, sys
from gguf import GGUFReader
reader = GGUFReader(sys.argv[1])
keys = ["general.architecture", "general.name", "llama.block_count", "tokenizer.ggml.pre"]
print(json.dumps([len(reader.tensors), *(reader.fields[key].contents() for key in keys)]))
`;

it.skipIf(!nightly)("the package gguf reads what the converter wrote of a trained SmolLM2", async () => {
  const LLAMA_CPP = sourcesOfLlamaCpp();
  const hone = (...args: string[]) => outputOf(startHone(args, { env: { ...process.env, LLAMA_CPP } }));
  const run = join(root, "run");
  const once = ["rllm.trainer.total_batches=1", "rllm.trainer.val_before_train=false", "rllm.trainer.test_freq=0"];
  const small = ["data.train_batch_size=2", "rllm.rollout.n=2", `rllm.trainer.run_dir=${run}`];
  await hone("train", "examples/larger-number/train.ts", ...once, ...small);
  const file = join(root, "my-model.gguf");
  expect(await hone("export", run, file, "--as", "gguf")).toContain("gguf of step 1 written to");
  const facts = JSON.parse(execFileSync(knownPython(), ["-c", read, file], { encoding: "utf8" }));
  expect(facts).toEqual([272, "llama", "my-model", 30, "smollm"]);
});
