/** `hone export --as gguf`: a Hugging Face model directory becomes a GGUF file, by llama.cpp's own converter. */
import { execFile } from "node:child_process";
import { existsSync, renameSync, rmSync } from "node:fs";
import { delimiter, join, parse, resolve } from "node:path";
import { promisify } from "node:util";
import { RunError, UserError } from "../errors.ts";
import { temporaryName } from "../files/temporary-names.ts";
import { knownPython } from "../python/find.ts";
import { preparePackage } from "../python/prepare.ts";

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
