/** Finds a Python that is already installed. */
import { execFile } from "node:child_process";
import { statSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { hasNvidiaGpu } from "../has-nvidia-gpu.ts";

type VerlEnvironment = "verl" | "verl-gpu";

/** The name of the verl backend's environment. The one for GPUs also contains vLLM, because verl's servers run in it. */
export const verlEnvironment = (): VerlEnvironment => (hasNvidiaGpu() ? "verl-gpu" : "verl");

/** HONE_PYTHON, else the environment that set-up created in this project, else `python3`. */
export const knownPython = (): string => process.env.HONE_PYTHON || (installedPython("python") ?? "python3");

/** The Python of an environment in `.hone` that set-up created in this project; undefined if it did not. */
export function installedPython(environment: "python" | "vllm" | "vllm-cpu" | VerlEnvironment): string | undefined {
  const executable = process.platform === "win32" ? "Scripts/python.exe" : "bin/python";
  const projects = [fileURLToPath(new URL("../..", import.meta.url)), process.cwd()];
  const isFile = (path: string) => statSync(path, { throwIfNoEntry: false })?.isFile() ?? false;
  return projects.map((project) => join(project, ".hone", environment, executable)).find(isFile);
}

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
