/**
 * Where set-up installs Python, packages and converted models: one folder per user, which all projects and versions of Hone
 * share. The name of an environment contains a hash of what it pins, so that two versions never replace each other's.
 */
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readdirSync } from "node:fs";
import { homedir } from "node:os";
import { basename, delimiter, dirname, join, resolve } from "node:path";
import { pythonIn, workerFile } from "./paths.mjs";
import { SetupError } from "./report.mjs";
import { hashFiles } from "./stamp.mjs";

/** Whether this machine has an NVIDIA GPU that programs can use: its driver, or at least nvidia-smi. */
export function hasNvidiaGpu(environment = process.env) {
  if (process.platform !== "linux") return false;
  if (existsSync("/proc/driver/nvidia/version")) return true;
  return (environment.PATH ?? "").split(delimiter).some((folder) => existsSync(join(folder, "nvidia-smi")));
}

/** `HONE_HOME`, or `hone` in the user's cache folder. */
export function homeOf(environment = process.env) {
  if (environment.HONE_HOME) return resolve(environment.HONE_HOME);
  return join(environment.XDG_CACHE_HOME || join(homedir(), ".cache"), "hone");
}

/** @returns the home, which now exists */
export function makeHome() {
  const home = homeOf();
  try {
    mkdirSync(home, { recursive: true });
    return home;
  } catch (error) {
    const { code } = /** @type {NodeJS.ErrnoException} */ (error);
    throw new SetupError(`cannot create ${home} (${code})`, {
      hint: "Set HONE_HOME to a folder that can be written, e.g. HONE_HOME=.hone for this project alone.",
      exitCode: 2,
    });
  }
}

/**
 * The lock files that pin an environment or package.
 * @param {string} name
 */
export function locksOf(name) {
  const [first, ...parts] = name.split("-");
  const locks = first === "python" ? ["", "-torch", ...(parts.includes("dev") ? ["-dev"] : [])] : [`-${name}`];
  return locks.map((lock) => workerFile(`requirements${lock}.lock`));
}

/**
 * Its folder. It is complete or absent.
 * @param {string} name
 */
export function pinnedFolder(name, home = homeOf()) {
  const pins = `${hashFiles(locksOf(name))} ${process.platform} ${process.arch}`;
  return join(home, `${name}-${createHash("sha256").update(pins).digest("hex").slice(0, 12)}`);
}

/**
 * The Python of an environment, if set-up has created it. `python`, the worker's, has variants: `-cpu` with torch's CPU build,
 * which is not used where there is a GPU, and `-dev` with the packages of the tests.
 * @param {string} name
 * @param {{dev?: boolean, gpu?: boolean}} options
 * @returns {string | undefined}
 */
export function installedPython(name, { dev = false, gpu = hasNvidiaGpu() } = {}) {
  const builds = gpu ? ["python"] : ["python-cpu", "python"];
  const names =
    name === "python" ? builds.flatMap((build) => (dev ? [`${build}-dev`] : [build, `${build}-dev`])) : [name];
  return names
    .filter((each) => locksOf(each).every((lock) => existsSync(lock))) // The published package has no locks of the tests.
    .map((each) => pythonIn(pinnedFolder(each)))
    .find((executable) => existsSync(executable));
}

/**
 * Folders of the same environment that pin other packages: other versions of Hone may still use them.
 * @param {string} folder
 */
export function otherVersions(folder) {
  const [name] = basename(folder).split(/-[0-9a-f]{12}$/);
  return readdirSync(dirname(folder))
    .filter((entry) => entry.split(/-[0-9a-f]{12}$/)[0] === name && entry !== basename(folder))
    .map((entry) => join(dirname(folder), entry));
}
