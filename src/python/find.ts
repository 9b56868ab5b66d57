/** Finds a Python that is already installed. */
import { execFile } from "node:child_process";
import { promisify } from "node:util";

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
