/** Finds and prepares Python for the parts of Hone that need it. */
import { execFile, spawn } from "node:child_process";
import { relative } from "node:path";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { RunError, UserError } from "./errors.ts";

// Finds a Python that is already installed.

type VerlEnvironment = "verl" | "verl-gpu";

/** Set-up also runs before a build exists, so this file is not compiled. The same relative path from src/ and from dist/. */
interface SetupHome {
  /** Whether this machine has an NVIDIA GPU that programs can use: its driver, or at least nvidia-smi. */
  hasNvidiaGpu(): boolean;
  /** The Python of an environment that set-up has created; undefined if it has not. */
  installedPython(environment: "python" | "vllm" | "vllm-cpu" | VerlEnvironment): string | undefined;
}
const home = new URL("../../scripts/setup/home.mjs", import.meta.url).href;
export const { hasNvidiaGpu, installedPython } = (await import(home)) as SetupHome;

/** The name of the verl backend's environment. The one for GPUs also contains vLLM, because verl's servers run in it. */
export const verlEnvironment = (): VerlEnvironment => (hasNvidiaGpu() ? "verl-gpu" : "verl");

/** HONE_PYTHON, else the environment that set-up has created, else `python3`. */
export const knownPython = (): string => process.env.HONE_PYTHON || (installedPython("python") ?? "python3");

export interface PythonPlace {
  /** Absolute path of the executable. */
  executable: string;
  /** The folders that it is installed in: its own, and that of the Python below a virtual environment. */
  prefixes: string[];
}

const place = "import sys, json; print(json.dumps([sys.executable, sys.prefix, sys.base_prefix]))";

/** @param name an executable, or its name on the PATH */
export async function locatePython(name: string): Promise<PythonPlace> {
  const { stdout } = await promisify(execFile)(name, ["-I", "-c", place]);
  const [executable = name, ...prefixes] = JSON.parse(stdout) as string[];
  return { executable, prefixes: [...new Set(prefixes)] };
}

// Prepares Python for the parts of Hone that need it. The work is done by scripts/setup.mjs, which also runs before
// a build exists. It returns within 0.1 s if nothing is missing; otherwise it reports its progress.

/** The same relative path from src/ and from dist/. */
const script = fileURLToPath(new URL("../../scripts/setup.mjs", import.meta.url));

/** The command that runs a set-up step, relative to the working directory. */
export const setupCommand = (...step: string[]) => ["node", relative(process.cwd(), script), ...step].join(" ");

export interface PreparedPython {
  /** Where set-up installs, by default a folder of the user. */
  home: string;
  /** The executable that has torch: `HONE_PYTHON` if it is set. */
  python: string;
}

/** @throws UserError if the user can install what is missing; RunError if the set-up fails */
export const preparePython = () => runSetup<PreparedPython>("python");

/**
 * Installs the Python package that `worker/requirements-{name}.lock` pins, in a folder of its own.
 * @returns the folder
 * @throws UserError if the user can install what is missing; RunError if the set-up fails
 */
export async function preparePackage(name: string): Promise<string> {
  return (await runSetup<{ directory: string }>("package", name)).directory;
}

/**
 * Installs another version of transformers than the locked one.
 * @returns the folder, for the beginning of PYTHONPATH
 * @throws UserError if the user can install what is missing; RunError if the set-up fails
 */
export async function prepareTransformers(version: string): Promise<string> {
  return (await runSetup<{ directory: string }>("transformers", version)).directory;
}

/**
 * Prepares a separate environment of `scripts/setup/environment.mjs`, which `worker/requirements-{name}.lock` pins. A variable such as
 * `HONE_VLLM_PYTHON` selects an existing one.
 * @returns its Python executable
 * @throws UserError if the user can install what is missing; RunError if the set-up fails
 */
export async function prepareEnvironment(name: string): Promise<string> {
  return (await runSetup<PreparedPython>("environment", name)).python;
}

interface SetupFailure {
  error: string;
  hint?: string;
  exitCode: number;
}

async function runSetup<Result extends object>(...step: string[]): Promise<Result> {
  const child = spawn(process.execPath, [script, ...step, "--json"], { stdio: ["ignore", "pipe", "inherit"] });
  // Set-up holds a lock and may run for minutes, so it must not outlive this process.
  const kill = (): void => void child.kill();
  process.on("exit", kill);
  try {
    const output = await text(child.stdout);
    const result = parse<Result>(output.trim().split("\n").at(-1) ?? "");
    if (!("error" in result)) return result;
    const Failure = result.exitCode === 2 ? UserError : RunError;
    throw new Failure(result.error, result.hint === undefined ? {} : { hint: result.hint });
  } finally {
    process.off("exit", kill);
  }
}

function parse<Result>(line: string): Result | SetupFailure {
  try {
    return JSON.parse(line) as Result | SetupFailure;
  } catch {
    return { error: "the set-up of Python was interrupted", hint: "Run it again: `hone doctor`.", exitCode: 1 };
  }
}
