/** `hone export`: writes a checkpoint as a PEFT adapter, a Hugging Face model directory, or a GGUF file. */
import { existsSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { type Command, Option } from "commander";
import { adapterSpec } from "../../backends/adapter-spec.ts";
import type { Learner } from "../../backends/engine.ts";
import { baseModel } from "../../backends/local/models.ts";
import { openEngine } from "../../backends/registry/open-engine.ts";
import type { Config } from "../../config/schema.ts";
import { UserError } from "../../errors.ts";
import { removeLeftovers, temporaryName } from "../../files/temporary-names.ts";
import { readMetrics } from "../../tracking/run-folder/metrics-file.ts";
import { type OpenCheckpoint, openCheckpoint } from "../../trainer/checkpoints/open-checkpoint.ts";
import { convertToGguf, findConverter } from "../gguf.ts";
import { type Ancestor, modelCard } from "../model-card.ts";
import { checkpointNames } from "../options.ts";
import { showStatus } from "../show-status.ts";

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
