/** Where things are: the package itself, the project that uses it, and the project's `.hone` folder. */
import { existsSync } from "node:fs";
import { dirname, join, sep } from "node:path";
import { fileURLToPath } from "node:url";

/** The folder of Hone's own package.json. */
export const packageRoot = fileURLToPath(new URL("../..", import.meta.url)).replace(/[\\/]$/, "");

/**
 * Hone's own folder when it is a checkout; the nearest folder with a package.json above `cwd` when it is a dependency.
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
