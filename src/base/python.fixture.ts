/** For end-to-end tests: runs a script of worker/tests with the worker's Python, beside the engine. */
import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { cpSync, existsSync, mkdtempSync, renameSync } from "node:fs";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import { preparePython } from "./python.ts";

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
 * Runs a script that writes a model into a new folder. Within one run of the tests (scripts/maintain/shared-models.ts), equal models
 * are made once and copied, because importing torch takes longer than everything else.
 * @param args of the script, with the folder as `at`
 */
async function makeModel(directory: string, script: string, args: (at: string) => string[]): Promise<void> {
  const shared = process.env.HONE_SHARED_MODELS;
  if (shared === undefined) return void (await runPython(script, args(directory)));
  const made = join(
    shared,
    createHash("sha256")
      .update([script, ...args("")].join("\n"))
      .digest("hex")
      .slice(0, 16),
  );
  if (!existsSync(made)) {
    const own = mkdtempSync(`${made}-`);
    await runPython(script, args(own));
    // Another file's process may have been faster.
    if (!existsSync(made)) renameSync(own, made);
  }
  cpSync(made, directory, { recursive: true });
}

/**
 * Writes a tiny random Llama with a byte-level tokenizer and a chat template into a new folder.
 * @param headSize inference servers require at least 32
 */
export async function makeTinyModel(directory: string, seed = 0, headSize = 8): Promise<string> {
  await makeModel(directory, "make_tiny_model.py", (at) => [at, String(seed), String(headSize)]);
  return directory;
}

/** Writes a tiny random mixture of four experts in the form of Qwen3-MoE, as `makeTinyModel` does. */
export async function makeTinyMixture(directory: string, headSize = 8): Promise<string> {
  await makeModel(directory, "make_tiny_model.py", (at) => [at, "0", String(headSize), "4"]);
  return directory;
}

/**
 * Writes a tiny random model that reads images into the folder `family` in `root`.
 * @returns the new folder
 */
export async function makeTinyVisionModel(root: string, family = "smolvlm", headSize = 8): Promise<string> {
  await makeModel(root, "make_tiny_vision_model.py", (at) => [at, family, String(headSize)]);
  return join(root, family);
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
  const more = preferred === undefined ? [] : [preferred];
  await makeModel(directory, "make_tiny_reward_model.py", (at) => [...flags, at, "0", ...more]);
  return directory;
}
