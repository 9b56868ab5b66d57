/** For end-to-end tests: runs a script of worker/tests with the worker's Python, beside the engine. */
import { spawn } from "node:child_process";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import { preparePython } from "./prepare.ts";

const scripts = new URL("../../worker/tests/", import.meta.url);

/** Runs `worker/tests/{script}` with JSON on its standard input. @returns its standard output */
export async function runPython(script: string, args: readonly string[] = [], input: unknown = null): Promise<string> {
  const { python } = await preparePython();
  const child = spawn(python, [fileURLToPath(new URL(script, scripts)), ...args], { stdio: ["pipe", "pipe", "pipe"] });
  child.stdin.end(JSON.stringify(input));
  const ended = new Promise<number | null>((resolve) => child.once("close", resolve));
  const [output, errors, code] = await Promise.all([text(child.stdout), text(child.stderr), ended]);
  if (code !== 0) throw new Error(`${script} failed:\n${errors}`);
  return output;
}

/**
 * Writes a tiny random Llama with a byte-level tokenizer and a chat template into a new folder.
 * @param headSize inference servers require at least 32
 */
export async function makeTinyModel(directory: string, seed = 0, headSize = 8): Promise<string> {
  await runPython("make_tiny_model.py", [directory, String(seed), String(headSize)]);
  return directory;
}

/**
 * Writes a tiny reward model into a new folder, with a tokenizer and a chat template of its own, or with `tokenizer` the
 * tiny language model's.
 * @param preferred characters that it likes; without them its weights are random
 */
export async function makeTinyRewardModel(
  directory: string,
  { preferred, tokenizer }: { preferred?: string; tokenizer?: "of the language model" } = {},
): Promise<string> {
  const flags = tokenizer === undefined ? [] : ["--language-model"];
  const words = [...flags, directory, "0", ...(preferred === undefined ? [] : [preferred])];
  await runPython("make_tiny_reward_model.py", words);
  return directory;
}
