/** Finds a Python that is already installed. */
import { execFile } from "node:child_process";
import { statSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

/** HONE_PYTHON, else the environment that set-up created in this project, else `python3`. */
export function knownPython(): string {
  if (process.env.HONE_PYTHON) return process.env.HONE_PYTHON;
  const executable = process.platform === "win32" ? "Scripts/python.exe" : "bin/python";
  const projects = [fileURLToPath(new URL("../..", import.meta.url)), process.cwd()];
  const isFile = (path: string) => statSync(path, { throwIfNoEntry: false })?.isFile() ?? false;
  return projects.map((project) => join(project, ".hone/python", executable)).find(isFile) ?? "python3";
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
