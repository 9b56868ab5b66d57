/** `hone import`: writes an experiment of what another system has. */
import { existsSync } from "node:fs";
import { join, relative, resolve } from "node:path";
import type { Command } from "commander";
import { UserError } from "../../base/errors.ts";
import { makeFolder, writeWhole } from "../../base/files.ts";
import { printableLines } from "../../base/text.ts";
import type { Dataset } from "../../data/dataset.ts";
import { openDataset } from "../../data/open-dataset.ts";
import { importJob } from "../../integrations/openai-rft/import-job.ts";
import { readText } from "./options.ts";

interface ImportFlags {
  output: string;
  validation?: string;
}

export function register(command: Command): void {
  command
    .command("rft")
    .description("Write an experiment of a job of OpenAI's reinforcement fine-tuning, or of an eval.")
    .argument("<job>", "JSON: the job, its method, a grader alone, or an eval with testing_criteria")
    .argument("<data>", "the training file: .jsonl")
    .option("--validation <data>", "the validation file")
    .option("-o, --output <folder>", "where to write train.ts; it must not have one", ".")
    .addHelpText("after", help)
    .action(importRft);
}

const help = `
What cannot be carried over is printed, and written into train.ts.

Examples:
  hone import rft job.json train.jsonl
  hone import rft eval.json rows.jsonl -o my-eval`;

async function importRft(job: string, data: string, { output, validation }: ImportFlags): Promise<void> {
  for (const file of [data, validation]) {
    if (file !== undefined && !existsSync(file)) throw new UserError(`${file}: no such file`);
  }
  const from = (file: string) => {
    const path = relative(resolve(output), resolve(file));
    return path.startsWith(".") ? path : `./${path}`;
  };
  const { files, missing, check } = importJob(readJson(job), {
    train: from(data),
    ...(validation === undefined ? {} : { validation: from(validation) }),
  });
  for (const name of Object.keys(files)) {
    if (existsSync(join(output, name)))
      throw new UserError(`${join(output, name)} already exists`, { hint: "name another folder with --output" });
  }
  makeFolder(output);
  for (const [name, text] of Object.entries(files)) writeWhole(join(output, name), [text]);
  const lines = [
    `${Object.keys(files)
      .sort()
      .map((name) => join(output, name))
      .join(", ")} written`,
  ];
  for (const file of [data, validation]) {
    const problem = file === undefined ? undefined : await problemOf(file, check);
    if (problem !== undefined) lines.push(`train.ts cannot read the rows so far: ${problem}`);
  }
  if (missing.length > 0) lines.push("not carried over:", ...missing.map((sentence) => `- ${sentence}`));
  lines.push(`next: npx hone-rl score ${join(output, "train.ts")} --model openai:gpt-5-mini`);
  process.stdout.write(`${lines.map(printableLines).join("\n")}\n`);
}

async function problemOf(file: string, check: (rows: Dataset<unknown>) => void): Promise<string | undefined> {
  try {
    check(await openDataset(file));
    return undefined;
  } catch (error) {
    if (error instanceof UserError) return error.message;
    throw error;
  }
}

function readJson(file: string): unknown {
  const text = readText(file);
  try {
    return JSON.parse(text.replace(/^\uFEFF/, ""));
  } catch (cause) {
    throw new UserError(`${file} is not JSON: ${(cause as Error).message}`, { cause });
  }
}
