import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, it, test } from "vitest";
import { baseModel } from "../../backends/local/models.ts";
import { composeConfig } from "../../config/compose.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import type { StepMetrics } from "../../tracking/events.ts";
import { type CardFacts, convertToGguf, findConverter, modelCard, processorFile } from "./export.ts";

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

const { config } = composeConfig({ input: { training: { learning_rate: 3e-4 }, model: { lora_rank: 8 } } });
const steps: StepMetrics[] = Array.from({ length: 40 }, (_, index) => ({
  step: index + 1,
  metrics: { "reward/mean": index / 40 },
}));
const validations: StepMetrics[] = [0, 40].map((step) => ({
  step,
  metrics: { "val/reward": step === 0 ? 0.25 : 0.875 },
}));
const facts = (changes: Partial<CardFacts>): CardFacts => ({
  ...{ as: "adapter", base: baseModel("smollm2-135m-instruct") },
  ...{ readsImages: false, step: 40, config, steps, validations, ancestors: [] },
  ...changes,
});

it("an export of a shipped alias names its base on the hub, and says how the weights differ", () => {
  const card = modelCard(facts({}));
  expect(card).toMatch(/^---\nbase_model: HuggingFaceTB\/SmolLM2-135M-Instruct\nlibrary_name: peft\n/);
  expect(card).toContain('from_pretrained("HuggingFaceTB/SmolLM2-135M-Instruct")');
  expect(card).toContain("its weights quantized to 4 bits");
  expect(card).toContain("| trained weights | LoRA, rank 8, alpha 32, on attn, mlp |");
  expect(card).toContain("| step | 1 | 5 | 10 | 14 | 18 | 23 | 27 | 31 | 36 | 40 |");
  expect(card).toContain("`val/reward` on the validation tasks: 0.250 before training, 0.875 after step 40.");
});

it("the card of a model that reads images names its class, its processor and its task", () => {
  for (const as of ["adapter", "merged"] as const) {
    const card = modelCard(facts({ as, readsImages: true }));
    expect(card).toContain("pipeline_tag: image-text-to-text");
    expect(card).toContain("import AutoModelForImageTextToText, AutoProcessor");
    expect(card).toMatch(/(base|model) = AutoModelForImageTextToText\.from_pretrained/);
    // AutoProcessor needs a config.json, which an adapter's folder does not have.
    const folder = as === "adapter" ? "HuggingFaceTB/SmolLM2-135M-Instruct" : "path/to/this/folder";
    expect(card).toContain(`processor = AutoProcessor.from_pretrained("${folder}")`);
    expect(card).not.toMatch(/CausalLM|AutoTokenizer|text-generation/);
  }
});

it("an adapter of a model that reads images is exported with its image processor", () => {
  for (const name of ["preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json"])
    expect(name).toMatch(processorFile);
  expect("config.json").not.toMatch(processorFile);
});

it("an export leaves out what is unknown", () => {
  const { config: own } = composeConfig({ input: { model: { name: "/models/own" } } });
  const card = modelCard(facts({ as: "merged", config: own, base: {}, steps: [], validations: [] }));
  expect(card).not.toMatch(/base_model|Rewards|Adapter|peft|undefined|null|NaN/);
  expect(card).toContain("# own, trained by reinforcement learning");
});

it("the card of a chain names the runs that it was made from", () => {
  const rows = composeConfig({ input: { training: { source: "rows" }, data: { train_files: "data/good.jsonl" } } });
  const card = modelCard(facts({ ancestors: [{ config: rows.config, step: 12 }] }));
  expect(card).toContain("tags: [lora, sft, reinforcement-learning]");
  expect(card).toContain(
    "1. `default`: fine-tuned on examples (`good.jsonl`), 12 steps\n2. `default`: trained by reinforcement",
  );
  expect(modelCard(facts({ config: rows.config }))).toContain("| loss | `nll`, token-mean |");
});
