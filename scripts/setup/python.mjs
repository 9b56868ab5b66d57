/**
 * Builds the worker's Python environment with uv, from lock files with hashes. The environment variable HONE_PYTHON names
 * another Python to use.
 */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { findPython } from "./find-python.mjs";
import { hasNvidiaGpu, homeOf, installedPython, makeHome, otherVersions, pinnedFolder } from "./home.mjs";
import { withLock } from "./lock.mjs";
import { packageRoot, pythonIn, workerFile } from "./paths.mjs";
import { SetupError, say, secondsSince, size } from "./report.mjs";
import { attempt, freeBytes, run } from "./run.mjs";
import { replaceFolder } from "./stamp.mjs";
import { installLock, prepareUv } from "./uv.mjs";

const locks = {
  base: workerFile("requirements.lock"),
  torch: workerFile("requirements-torch.lock"),
  dev: workerFile("requirements-dev.lock"),
};

/** Bytes of the standard torch wheel for Linux and its CUDA packages. */
const ordinary = { download: 3.0e9, disk: 5.4e9 };
const cpuSeconds = 20;

/**
 * @param {{dev?: boolean}} options with the packages of the tests
 * @returns {Promise<string>} the Python executable
 */
export async function preparePython({ dev = false } = {}) {
  const own = process.env.HONE_PYTHON;
  if (own) return requireRunning(own, "HONE_PYTHON");
  const ready = () => installedPython("python", { dev });
  return ready() ?? withLock(join(makeHome(), "setup.lock"), async () => ready() ?? build(dev));
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

/** @param {boolean} dev */
async function build(dev) {
  const start = performance.now();
  const home = homeOf();
  const base = await findPython();
  say(`preparing the local engine's Python ${base.version} in ${home} (once)`);
  if (freeBytes(home) < ordinary.disk)
    say(`only ${size(freeBytes(home))} of disk are free; up to ${size(ordinary.disk)} may be needed`);
  const uv = await prepareUv(home, base.executable);
  const name = (await offersCpuTorch(uv, base.executable)) ? "python-cpu" : "python";
  const folder = pinnedFolder(dev ? `${name}-dev` : name);
  await replaceFolder(folder, async (partial) => {
    await run("creating the environment", uv.command, ["venv", "--python", base.executable, partial], { env: uv.env });
    const python = pythonIn(partial);
    await install(uv, python, locks.base);
    if (name === "python-cpu") {
      const args = ["pip", "install", "--python", python, ...cpuTorch()];
      await run("installing torch's CPU build", uv.command, args, { env: uv.env, onLine: showProgress });
    } else await install(uv, python, locks.torch);
    if (dev) await install(uv, python, locks.dev);
    const version = await run("the first import of torch", python, ["-c", "import torch; print(torch.__version__)"]);
    say(`torch ${version.trim().split("\n").at(-1)} works`);
  });
  say(`Python ready in ${secondsSince(start)}${await diskUse(folder)}`);
  for (const other of otherVersions(folder))
    say(`${other} belongs to another version of Hone; delete it if no project uses it`);
  return pythonIn(folder);
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

/** torch's CPU build of the locked version, which is in torch's own index. */
function cpuTorch() {
  const torch = /^torch==\S+/m.exec(readFileSync(locks.torch, "utf8"))?.[0];
  if (torch === undefined) throw new SetupError(`${locks.torch} does not contain torch`);
  return ["--no-deps", "--torch-backend", "cpu", torch];
}

/**
 * On Linux without a GPU, torch's small CPU build is enough. If its index is not reachable, the standard wheel is installed,
 * which does not import without its CUDA packages.
 * @param {import("./uv.mjs").Uv} uv
 * @param {string} python
 */
async function offersCpuTorch(uv, python) {
  if (process.platform !== "linux") return false;
  if (hasNvidiaGpu()) say("found an NVIDIA GPU: installing torch with CUDA");
  else {
    const quick = { UV_HTTP_RETRIES: "0", UV_HTTP_TIMEOUT: "8" };
    const { code } = await attempt(
      uv.command,
      ["pip", "install", "--python", python, "--break-system-packages", "--dry-run", ...cpuTorch()],
      { env: { ...uv.env, ...quick }, timeoutMs: cpuSeconds * 1000 },
    );
    if (code === 0) return true;
    say(
      "torch's index of CPU builds is not reachable: installing the standard wheel, which computes the same but is larger",
    );
  }
  say(
    `downloading up to ${size(ordinary.download)}; ${size(ordinary.disk)} on disk, shared with uv's cache on the same disk`,
  );
  return false;
}

/** @param {string} folder */
export async function diskUse(folder) {
  const { code, output } = await attempt("du", ["-sk", folder]);
  return code === 0 ? `, ${size(Number.parseInt(output, 10) * 1024)} on disk` : "";
}
