/**
 * Builds the worker's Python environment in `.hone/python`, with uv and from lock files with hashes. It is either complete
 * or absent. The environment variable HONE_PYTHON names another Python to use.
 */
import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { delimiter, join } from "node:path";
import { findPython } from "./find-python.mjs";
import { withLock } from "./lock.mjs";
import { packageRoot, projectRoot, pythonIn, workerFile } from "./paths.mjs";
import { SetupError, say, secondsSince, size } from "./report.mjs";
import { attempt, freeBytes, run } from "./run.mjs";
import { hashFiles, readStamp, replaceFolder, writeStamp } from "./stamp.mjs";
import { installLock, prepareUv } from "./uv.mjs";

const locks = {
  base: workerFile("requirements.lock"),
  torch: workerFile("requirements-torch.lock"),
  dev: workerFile("requirements-dev.lock"),
};

/** Bytes of the standard torch wheel for Linux and its CUDA packages. */
const ordinary = { download: 3.0e9, disk: 5.4e9 };
const cpuSeconds = 20;

export const homeOf = (project = projectRoot()) => join(project, ".hone");

/** A driver without nvidia-smi is enough for torch. */
function hasNvidiaGpu(environment = process.env) {
  if (process.platform !== "linux") return false;
  if (existsSync("/proc/driver/nvidia/version")) return true;
  return (environment.PATH ?? "").split(delimiter).some((folder) => existsSync(join(folder, "nvidia-smi")));
}

/**
 * @param {string} home
 * @param {boolean} dev with the packages of the tests
 */
function pythonReady(home, dev) {
  const folder = join(home, "python");
  const stamp = readStamp(join(folder, ".stamp.json"));
  if (stamp?.locks !== hashFiles([locks.base, locks.torch]) || !existsSync(pythonIn(folder))) return false;
  if (stamp.torch === "cpu" && hasNvidiaGpu()) return false; // A GPU was added later.
  return !dev || readStamp(join(folder, ".dev.json"))?.locks === hashFiles([locks.dev]);
}

/**
 * @param {{dev?: boolean, home?: string}} options
 * @returns {Promise<string>} the Python executable
 */
export async function preparePython({ dev = false, home = homeOf() } = {}) {
  const own = process.env.HONE_PYTHON;
  if (own) return requireRunning(own, "HONE_PYTHON");
  const folder = join(home, "python");
  if (pythonReady(home, dev)) return pythonIn(folder);
  mkdirSync(home, { recursive: true });
  await withLock(join(home, "setup.lock"), async () => {
    if (!pythonReady(home, false)) await build(home, folder);
    if (dev && !pythonReady(home, true)) await addDev(home, folder);
  });
  return pythonIn(folder);
}

/**
 * @param {string} python
 * @param {string} variable that names it
 */
export async function requireRunning(python, variable) {
  if ((await attempt(python, ["-c", ""])).code === 0) return python;
  throw new SetupError(`${variable}=${python} does not run`, {
    hint: "Set it to a Python executable, or unset it.",
    exitCode: 2,
  });
}

/**
 * @param {string} home
 * @param {string} folder
 */
async function build(home, folder) {
  const start = performance.now();
  const base = await findPython();
  say(`preparing the local engine's Python ${base.version} in ${folder} (once)`);
  if (freeBytes(home) < ordinary.disk)
    say(`only ${size(freeBytes(home))} of disk are free; up to ${size(ordinary.disk)} may be needed`);
  const uv = await prepareUv(home, base.executable);
  await replaceFolder(folder, async (partial) => {
    await run("creating the environment", uv.command, ["venv", "--python", base.executable, partial], { env: uv.env });
    const python = pythonIn(partial);
    await install(uv, python, locks.base);
    const torch = await installTorch(uv, python);
    const version = await run("the first import of torch", python, ["-c", "import torch; print(torch.__version__)"]);
    say(`torch ${version.trim().split("\n").at(-1)} works`);
    writeStamp(join(partial, ".stamp.json"), { locks: hashFiles([locks.base, locks.torch]), torch });
  });
  say(`Python ready in ${secondsSince(start)}${await diskUse(folder)}`);
}

/**
 * @param {string} home
 * @param {string} folder
 */
async function addDev(home, folder) {
  const uv = await prepareUv(home, pythonIn(folder));
  await install(uv, pythonIn(folder), locks.dev);
  writeStamp(join(folder, ".dev.json"), { locks: hashFiles([locks.dev]) });
}

/**
 * @param {import("./uv.mjs").Uv} uv
 * @param {string} python
 * @param {string} lock
 */
async function install(uv, python, lock) {
  await installLock(uv, ["--python", python], lock, lock.slice(packageRoot.length + 1), showProgress);
}

/** @param {string} line */
export function showProgress(line) {
  if (/^(Downloading|Prepared|Installed|warning)/.test(line.trim())) say(`  ${line.trim()}`);
}

/**
 * On Linux without a GPU, torch's small CPU build is enough. It is in torch's own index; if that is not reachable, the
 * standard wheel is installed, which does not import without its CUDA packages.
 * @param {import("./uv.mjs").Uv} uv
 * @param {string} python
 * @returns {Promise<"cpu" | "ordinary">}
 */
async function installTorch(uv, python) {
  if (process.platform === "linux") {
    if (hasNvidiaGpu()) say("found an NVIDIA GPU: installing torch with CUDA");
    else if (await installCpuTorch(uv, python)) return "cpu";
    say(
      `downloading up to ${size(ordinary.download)}; ${size(ordinary.disk)} on disk, shared with uv's cache on the same disk`,
    );
  }
  await install(uv, python, locks.torch);
  return "ordinary";
}

/**
 * @param {import("./uv.mjs").Uv} uv
 * @param {string} python
 */
async function installCpuTorch(uv, python) {
  const torch = /^torch==\S+/m.exec(readFileSync(locks.torch, "utf8"))?.[0];
  if (torch === undefined) throw new SetupError(`${locks.torch} does not contain torch`);
  const args = ["pip", "install", "--python", python, "--no-deps", "--torch-backend", "cpu", torch];
  const quick = { UV_HTTP_RETRIES: "0", UV_HTTP_TIMEOUT: "8" };
  const asked = await attempt(uv.command, [...args, "--dry-run"], {
    env: { ...uv.env, ...quick },
    timeoutMs: cpuSeconds * 1000,
  });
  if (asked.code === 0) {
    const installed = await attempt(uv.command, args, { env: uv.env, onLine: showProgress });
    if (installed.code === 0) return true;
  }
  say(
    "torch's index of CPU builds is not reachable: installing the standard wheel, which computes the same but is larger",
  );
  return false;
}

/** @param {string} folder */
export async function diskUse(folder) {
  const { code, output } = await attempt("du", ["-sk", folder]);
  return code === 0 ? `, ${size(Number.parseInt(output, 10) * 1024)} on disk` : "";
}
