/** `hone export`: writes a checkpoint as an adapter, a whole model or GGUF, with a model card. */
import { execFile } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { basename, delimiter, dirname, join, parse, resolve } from "node:path";
import { promisify } from "node:util";
import { type Command, Option } from "commander";
import { openEngine } from "../../backends/backends.ts";
import { type Learner, loraTargets } from "../../backends/engine.ts";
import { adapterSpec } from "../../backends/engine-parts.ts";
import { type BaseModel, baseModel } from "../../backends/local/models.ts";
import { RunError, UserError } from "../../base/errors.ts";
import { removeLeftovers, temporaryName } from "../../base/files.ts";
import { knownPython, preparePackage } from "../../base/python.ts";
import type { Config } from "../../config/schema.ts";
import { formatCount, formatNumber, formatRate, type StepMetrics, stepSummary } from "../../tracking/events.ts";
import { readMetrics } from "../../tracking/run-folder.ts";
import { type OpenCheckpoint, openCheckpoint } from "../../trainer/resume.ts";
import { checkpointNames } from "./options.ts";
import { showStatus } from "./report-error.ts";

// `hone export --as gguf`: a Hugging Face model directory becomes a GGUF file, by llama.cpp's own converter.

const script = "convert_hf_to_gguf.py";

/**
 * The command that starts the converter: the script in the folder `LLAMA_CPP` with Hone's Python, which has the packages that it
 * needs, else the program of that name on the PATH.
 *
 * @throws UserError if there is none
 */
export function findConverter(env: NodeJS.ProcessEnv = process.env): [program: string, ...args: string[]] {
  const { LLAMA_CPP: sources } = env;
  if (sources) {
    const file = resolve(sources, script);
    if (existsSync(file)) return [knownPython(), file];
    throw new UserError(`LLAMA_CPP is ${sources}, which does not contain ${script}`, {
      hint: "set it to a folder with the sources of llama.cpp",
    });
  }
  const installed = (env.PATH ?? "").split(delimiter).map((folder) => join(folder, script));
  const program = installed.find((file) => existsSync(file));
  if (program !== undefined) return [program];
  throw new UserError(`a GGUF file is written by llama.cpp's converter, but ${script} is not installed`, {
    hint:
      "git clone --depth 1 https://github.com/ggml-org/llama.cpp and set LLAMA_CPP=./llama.cpp, " +
      "or brew install llama.cpp",
  });
}

/**
 * @param model a Hugging Face model directory
 * @param file appears when it is complete; its weights keep the precision of the model's
 * @throws RunError with the converter's last lines if it fails, e.g. because it does not know the architecture or the tokenizer
 */
export async function convertToGguf(
  [program, ...args]: ReturnType<typeof findConverter>,
  model: string,
  file: string,
): Promise<void> {
  const partial = temporaryName(file);
  try {
    const options = ["--outfile", partial, "--outtype", "auto", "--model-name", parse(file).name];
    const env = { ...process.env };
    // The only package it needs that Hone's Python does not have.
    if (args.length > 0) env.PYTHONPATH = await preparePackage("sentencepiece");
    await promisify(execFile)(program, [...args, model, ...options], { maxBuffer: 2 ** 28, env });
    renameSync(partial, file);
  } catch (error) {
    const { stderr = "", message } = error as { stderr?: string; message: string };
    const last = stderr.trim().split("\n").slice(-5).join("\n") || message;
    throw new RunError(`llama.cpp's converter failed: ${last}`, {
      hint: "hone export --as merged writes the model directory that it was given",
    });
  } finally {
    rmSync(partial, { force: true });
  }
}

// README.md of an export: what was trained, how, and how to load it, from the checkpoint and its run alone.

export interface CardFacts {
  as: "adapter" | "merged";
  base: BaseModel;
  /** Whether the model has a vision part. */
  readsImages: boolean;
  step: number;
  config: Config;
  /** Metrics of the run up to `step`, oldest first; empty if the run folder is missing. */
  steps: readonly StepMetrics[];
  validations: readonly StepMetrics[];
  /** The runs whose weights it started from, the first run first. */
  ancestors: readonly Ancestor[];
}

/** A run that another one started from, up to the checkpoint that it started from. */
export interface Ancestor {
  config: Config;
  step: number;
}

/** By `training.source`. */
const kinds = {
  rollouts: { done: "trained by reinforcement learning", tag: "reinforcement-learning" },
  rows: { done: "fine-tuned on examples", tag: "sft" },
  pairs: { done: "trained on preferences", tag: "dpo" },
} as const;

export function modelCard(facts: CardFacts): string {
  const { as, base, readsImages, config, step } = facts;
  const model = config.model.name;
  const isAdapter = as === "adapter";
  const name = base.id ?? basename(model);
  const difference =
    base.difference && `The training used ${base.difference}. With the original weights, outputs differ slightly.`;
  return `---
${base.id === undefined ? "" : `base_model: ${base.id}\n`}library_name: ${isAdapter ? "peft" : "transformers"}
pipeline_tag: ${readsImages ? "image-text-to-text" : "text-generation"}
tags: [${[...(isAdapter ? ["lora"] : []), ...tagsOf(facts)].join(", ")}]
---

# ${name}, ${kinds[config.training.source].done}

${isAdapter ? "A LoRA adapter (PEFT)" : "A full model"} made with Hone from \`${name}\`, after ${step} training steps.
${difference ? `\n${difference}\n` : ""}
## Usage

\`\`\`python
${isAdapter ? loadAdapter(base.id ?? model, readsImages) : loadMerged(readsImages)}
\`\`\`

## Training
${madeFrom(facts)}
| setting | value |
|---|---|
${settings(config)}
${rewards(facts)}`;
}

const tagsOf = ({ ancestors, config }: CardFacts) => [
  ...new Set([...ancestors.map((one) => one.config), config].map(({ training }) => kinds[training.source].tag)),
];

/** The chain of runs, one line each; empty if it started from the base model. */
function madeFrom({ ancestors, config, step }: CardFacts): string {
  if (ancestors.length === 0) return "";
  const lines = [...ancestors, { config, step }].map(({ config: { training, data, rllm }, step: steps }, index) => {
    const files = training.source === "rollouts" ? [] : [data.train_files ?? []].flat();
    const on = files.length === 0 ? "" : ` (${files.map((file) => `\`${basename(file)}\``).join(", ")})`;
    return `${index + 1}. \`${rllm.trainer.experiment_name}\`: ${kinds[training.source].done}${on}, ${steps} steps`;
  });
  return `\nThe weights were trained in ${lines.length} runs, each from those of the run before:\n\n${lines.join("\n")}\n`;
}

const classOf = (readsImages: boolean) => (readsImages ? "AutoModelForImageTextToText" : "AutoModelForCausalLM");
const readerOf = (readsImages: boolean) => (readsImages ? "AutoProcessor" : "AutoTokenizer");

/** transformers' processors of images need torchvision, and SmolVLM's num2words. */
const loadReader = (readsImages: boolean, folder = "path/to/this/folder") =>
  readsImages
    ? `processor = AutoProcessor.from_pretrained(${JSON.stringify(folder)})  # requires torchvision; SmolVLM also num2words`
    : `tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")`;

/** AutoProcessor needs a config.json, which an adapter's folder does not have. */
const loadAdapter = (base: string, readsImages: boolean) => `from peft import PeftModel
from transformers import ${classOf(readsImages)}, ${readerOf(readsImages)}

base = ${classOf(readsImages)}.from_pretrained(${JSON.stringify(base)})
model = PeftModel.from_pretrained(base, "path/to/this/folder")
${loadReader(readsImages, base)}`;

const loadMerged = (readsImages: boolean) => `from transformers import ${classOf(readsImages)}, ${readerOf(readsImages)}

model = ${classOf(readsImages)}.from_pretrained("path/to/this/folder")
${loadReader(readsImages)}`;

function settings({ model, training, data, rllm, rollout_engine, sft, dpo }: Config): string {
  const parts = loraTargets.filter((part) => model[`train_${part}`]);
  const lora = `LoRA, rank ${model.lora_rank}, alpha ${model.lora_alpha}, on ${parts.join(", ")}`;
  const { temperature, max_tokens } = rllm.rollout.train;
  const { loss_fn: loss, adv_estimator: estimator } = rllm.algorithm;
  const renderer = rollout_engine.renderer_name;
  const bySource = {
    rollouts: [
      ["advantage estimator", `\`${estimator}\``],
      ["loss", loss && `\`${loss}\``],
      ["rollouts per task", rllm.rollout.n],
      ["sampling", `temperature ${temperature}, at most ${max_tokens} tokens per reply`],
    ],
    rows: [
      ["loss", `\`${sft.loss_type}\`, ${sft.reduction}`],
      ["learned parts", `\`${sft.train_on}\``],
    ],
    pairs: [["loss", `\`${dpo.loss_type}\`, beta ${dpo.beta}`]],
  }[training.source];
  const rows = [
    ["trained weights", model.lora_rank === 0 ? "all" : lora],
    ...bySource,
    ["learning rate", `${formatRate(training.learning_rate)}, ${training.lr_schedule}`],
    [`${training.source === "rollouts" ? "tasks" : training.source} per step`, data.train_batch_size],
    ["chat format", renderer && `\`rollout_engine.renderer_name=${renderer}\``],
    ["seed", rllm.trainer.seed],
  ];
  return rows.flatMap(([label, value = null]) => (value === null ? [] : [`| ${label} | ${value} |`])).join("\n");
}

const shownSteps = 10;

function rewards({ steps, validations, config }: CardFacts): string {
  const known = steps.flatMap(({ step, metrics }) => {
    const { reward } = stepSummary(metrics);
    return reward === undefined || !Number.isFinite(reward) ? [] : [{ step, reward }];
  });
  if (known.length === 0) return "";
  const apart = Math.max(1, (known.length - 1) / (shownSteps - 1));
  const indices = new Set(Array.from({ length: shownSteps }, (_, index) => Math.round(index * apart)));
  const shown = known.filter((_, index) => indices.has(index));
  const row = (cells: readonly (string | number)[]) => `| ${cells.join(" | ")} |\n`;
  return `
## Rewards during training

Mean reward of the training rollouts at ${formatCount(shown.length)} of ${formatCount(known.length)} steps:

${row(["step", ...shown.map(({ step }) => step)])}|---|${"---|".repeat(shown.length)}
${row(["reward", ...shown.map(({ reward }) => formatNumber(reward))])}${validationText(validations, config.training.best_metric)}`;
}

function validationText(validations: readonly StepMetrics[], metric: string): string {
  const measured = validations.filter(({ metrics }) => Object.hasOwn(metrics, metric));
  const ends = [...new Set([...measured.slice(0, 1), ...measured.slice(-1)])].map(({ step, metrics }) => {
    return `${formatNumber(metrics[metric] ?? Number.NaN)} ${step === 0 ? "before training" : `after step ${step}`}`;
  });
  return ends.length === 0 ? "" : `\n\`${metric}\` on the validation tasks: ${ends.join(", ")}.\n`;
}

// `hone export`: writes a checkpoint as a PEFT adapter, a Hugging Face model directory, or a GGUF file.

export function register(command: Command): void {
  command
    .argument("<checkpoint>", checkpointNames)
    .argument("<folder>", "where to write; must not exist. With --as gguf a file")
    .addOption(
      new Option(
        "--as <form>",
        "adapter (PEFT), merged (a Hugging Face model directory) or gguf (a file for Ollama, LM Studio and llama.cpp)",
      )
        .choices(["adapter", "merged", "gguf"])
        .default("adapter"),
    )
    .addHelpText(
      "after",
      `
Examples:
  hone export runs/latest my-adapter
  hone export runs/latest/checkpoints/step-000010 my-model --as merged
  hone export runs/latest my-model.gguf --as gguf`,
    )
    .action(exportCommand);
}

type Form = "adapter" | "merged";

async function exportCommand(path: string, target: string, { as }: { as: Form | "gguf" }): Promise<void> {
  const said = (step: number) => process.stdout.write(`${as} of step ${step} written to ${target}\n`);
  if (as !== "gguf") return void said(await exportTo(path, target, as));
  if (existsSync(target)) throw new UserError(`${target} already exists`, { hint: "name a new file" });
  const converter = findConverter();
  const model = temporaryName(resolve(`${target}-model`));
  try {
    const step = await exportTo(path, model, "merged");
    await convertToGguf(converter, model, resolve(target));
    said(step);
  } finally {
    rmSync(model, { recursive: true, force: true });
  }
}

/** @returns the step of the checkpoint */
async function exportTo(path: string, folder: string, as: Form): Promise<number> {
  if (existsSync(folder)) {
    throw new UserError(`${folder} already exists`, { hint: "name a new folder" });
  }
  if (existsSync(dirname(resolve(folder)))) removeLeftovers(dirname(resolve(folder)));
  const checkpoint = await openCheckpoint(path);
  if (as === "adapter" && checkpoint.config.model.lora_rank === 0) {
    throw new UserError(`${checkpoint.folder} trained all weights and has no adapter`, {
      hint: "add --as merged to export the whole model",
    });
  }
  const status = showStatus();
  const engine = await openEngine(checkpoint.composed, { onStatus: status.say }).finally(status.end);
  try {
    const learner = await engine.createLearner({ adapter: adapterSpec(checkpoint.config) });
    await learner.loadState(join(checkpoint.folder, "policy"), { optimizer: false });
    await exportWhole(resolve(folder), as, learner, engine.model.directory, checkpoint);
    return checkpoint.step;
  } finally {
    await engine.close();
  }
}

/** Writes weights, tokenizer and model card. The folder appears only when it is complete. */
async function exportWhole(folder: string, as: Form, learner: Learner, model: string, checkpoint: OpenCheckpoint) {
  const { processor } = checkpoint.config.model;
  const partial = temporaryName(folder);
  try {
    await learner.export(partial, as);
    // The run's own image processor replaces the model's. From the hub, only the worker has its files.
    const own = processor !== null && existsSync(processor) ? processor : model;
    for (const name of readdirSync(partial).filter((one) => processorFile.test(one))) rmSync(join(partial, name));
    copyMissing(own, partial, processorFile);
    copyMissing(model, partial, tokenizerFile);
    copyTemplates(model, partial);
    const { config, step } = checkpoint;
    const base = baseModel(config.model.name);
    if (as === "adapter" && base.id !== undefined) nameBase(join(partial, "adapter_config.json"), base.id);
    const run = dirname(dirname(checkpoint.folder));
    const until = (kind: "step" | "validation") => readMetrics(run, kind).filter((one) => one.step <= step);
    const readsImages = hasVisionPart(model);
    const history = { steps: until("step"), validations: until("validation") };
    const facts = { as, base, readsImages, config, step, ...history, ancestors: await ancestorsOf(config) };
    writeFileSync(join(partial, "README.md"), modelCard(facts));
    renameSync(partial, folder);
  } finally {
    rmSync(partial, { recursive: true, force: true });
  }
}

/** The runs that this one was made from, as far as their folders still exist. */
async function ancestorsOf({ training: { start_from: from } }: Config): Promise<Ancestor[]> {
  if (from === null || !existsSync(from)) return [];
  const { config, step } = await openCheckpoint(from);
  return [...(await ancestorsOf(config)), { config, step }];
}

const tokenizerFile =
  /^(tokenizer.*|special_tokens_map\.json|added_tokens\.json|vocab\..*|merges\.txt|chat_template.*)$/;

function hasVisionPart(model: string): boolean {
  const file = join(model, "config.json");
  return existsSync(file) && Object.hasOwn(JSON.parse(readFileSync(file, "utf8")) as object, "vision_config");
}

/** Such as preprocessor_config.json, video_preprocessor_config.json and processor_config.json. */
export const processorFile = /^(\w+_)?(pre)?processor_config\.json$/;

/** The templates beside chat_template.jinja, e.g. the one for conversations with tools. */
function copyTemplates(from: string, to: string): void {
  const folder = "additional_chat_templates";
  if (!existsSync(join(from, folder))) return;
  mkdirSync(join(to, folder), { recursive: true });
  copyMissing(join(from, folder), join(to, folder), /\.jinja$/);
}

function copyMissing(from: string, to: string, names: RegExp): void {
  for (const name of readdirSync(from).filter((one) => names.test(one))) {
    const copy = join(to, name);
    if (!existsSync(copy)) writeFileSync(copy, readFileSync(join(from, name)));
  }
}

/** Replaces the path that the worker loaded, which does not exist on another machine. */
function nameBase(file: string, id: string): void {
  const config = JSON.parse(readFileSync(file, "utf8")) as Record<string, unknown>;
  writeFileSync(file, `${JSON.stringify({ ...config, base_model_name_or_path: id }, null, 2)}\n`);
}
