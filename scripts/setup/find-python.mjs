/** Finds an installed Python that an environment can be built with. */
import { readdirSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { SetupError } from "./report.mjs";
import { attempt } from "./run.mjs";

const oldestMinor = 11;
const newestMinor = 14;

/**
 * The commands to try, best first.
 * @param {NodeJS.ProcessEnv} environment
 * @returns {string[]}
 */
export function pythonCandidates(environment = process.env) {
  const own = environment.HONE_PYTHON;
  const numbered = [];
  for (let minor = newestMinor; minor >= oldestMinor; minor--) numbered.push(`python3.${minor}`);
  const more = process.platform === "win32" ? ["python"] : pyenvPythons(environment);
  return [...(own ? [own] : []), "python3", ...numbered, ...more];
}

/**
 * Versions that pyenv has installed but not selected, the newest first: its command for them fails.
 * @param {NodeJS.ProcessEnv} environment
 */
function pyenvPythons({ PYENV_ROOT }) {
  const versions = join(PYENV_ROOT || join(homedir(), ".pyenv"), "versions");
  try {
    const minor = (/** @type {string} */ name) => Number(name.split(".")[1]);
    const installed = readdirSync(versions).filter((name) => /^3\.\d+\.\d+$/.test(name));
    return installed.sort((a, b) => minor(b) - minor(a)).map((name) => join(versions, name, "bin", "python"));
  } catch {
    return [];
  }
}

/**
 * @param {string} version e.g. "3.12.1"
 */
export function suits(version, oldest = oldestMinor) {
  const [major = 0, minor = 0] = version.split(".").map(Number);
  return major === 3 && minor >= oldest && minor <= newestMinor;
}

const question = "import sys, platform; print(platform.python_version()); print(sys.executable)";

/**
 * Returns the first candidate that runs and has a supported version.
 * @param {readonly string[]} candidates
 * @param {{what: string, minor: number}} [need] what needs it, and the oldest Python 3 that this supports
 * @returns {Promise<{executable: string, version: string}>}
 * @throws {SetupError} lists the versions that were found and what to install
 */
export async function findPython(candidates = pythonCandidates(), need) {
  const { what, minor } = need ?? { what: "the local engine", minor: oldestMinor };
  const found = [];
  for (const candidate of candidates) {
    const { code, output } = await attempt(candidate, ["-c", question], { timeoutMs: 20_000 });
    const [version = "", executable = ""] = output.trim().split(/\r?\n/).slice(-2);
    if (code !== 0 || executable === "") continue; // Not installed, or a shim of a version manager.
    if (suits(version, minor)) return { executable, version };
    found.push(`${candidate} is ${version}`);
  }
  const range = `3.${minor} to 3.${newestMinor}`;
  throw new SetupError(`${what} needs Python ${range}; found: ${found.join(", ") || "no Python"}`, {
    hint: `Install one: on Debian or Ubuntu "apt install python3 python3-venv", on Fedora "dnf install python3", on macOS "brew install python@3.13", otherwise from python.org. ${installElsewhere}`,
    exitCode: 2,
  });
}

const installElsewhere =
  "If it is not on the PATH, set HONE_PYTHON to a Python in which worker/requirements.lock is installed.";
