/** Paths of the package itself and of the project that uses it. */
import { existsSync } from "node:fs";
import { dirname, join, sep } from "node:path";
import { fileURLToPath } from "node:url";

/** The folder of Hone's own package.json. */
export const packageRoot = fileURLToPath(new URL("../..", import.meta.url)).replace(/[\\/]$/, "");

/**
 * A checkout is its own project. For a dependency, it is the nearest folder above `cwd` with a package.json.
 * @param {string} cwd
 * @param {string} root
 */
export function projectRoot(cwd = process.cwd(), root = packageRoot) {
  if (!root.split(sep).includes("node_modules")) return root;
  for (let folder = cwd; ; folder = dirname(folder)) {
    if (existsSync(join(folder, "package.json"))) return folder;
    if (folder === dirname(folder)) return cwd;
  }
}

/** @param {string} name a file of the worker's folder */
export const workerFile = (name) => join(packageRoot, "worker", name);

/** @param {string} environment the folder of a virtual environment */
export function pythonIn(environment) {
  return process.platform === "win32" ? join(environment, "Scripts", "python.exe") : join(environment, "bin", "python");
}
