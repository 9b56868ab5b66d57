/** For end-to-end tests: the worker's Python runs a script of worker/tests, beside the engine. */
import { spawn } from "node:child_process";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import { RunError } from "../../errors.ts";
import { runSetup } from "./setup.ts";

/** The same relative path from src/ and from dist/. */
const scripts = new URL("../../../worker/tests/", import.meta.url);

/** Runs `worker/tests/{script}` with JSON on its input and gives what it prints. @throws RunError when it fails */
export async function runPython(script: string, args: readonly string[] = [], input: unknown = null): Promise<string> {
  const { python } = await runSetup("python");
  const child = spawn(python!, [fileURLToPath(new URL(script, scripts)), ...args], { stdio: ["pipe", "pipe", "pipe"] });
  child.stdin.end(JSON.stringify(input));
  const ended = new Promise<number | null>((resolve) => child.once("close", resolve));
  const [output, errors, code] = await Promise.all([text(child.stdout), text(child.stderr), ended]);
  if (code !== 0) throw new RunError(`${script} failed:\n${errors}`);
  return output;
}

/** A tiny random Llama with a byte-level tokenizer and a chat template, in a folder that does not exist yet. */
export async function makeTinyModel(directory: string, seed = 0): Promise<string> {
  await runPython("make_tiny_model.py", [directory, String(seed)]);
  return directory;
}
