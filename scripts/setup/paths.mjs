/** Paths of the package itself and of its Python environments. */
import { join } from "node:path";
import { fileURLToPath } from "node:url";

/** The folder of Hone's own package.json. */
export const packageRoot = fileURLToPath(new URL("../..", import.meta.url)).replace(/[\\/]$/, "");

/** @param {string} name a file of the worker's folder */
export const workerFile = (name) => join(packageRoot, "worker", name);

/** @param {string} environment the folder of a virtual environment */
export function pythonIn(environment) {
  return process.platform === "win32" ? join(environment, "Scripts", "python.exe") : join(environment, "bin", "python");
}
