/** Finds a Python that Hone's own environment can be built on. */
import { SetupError } from "./report.mjs";
import { attempt } from "./run.mjs";

const oldest = [3, 11];
const newest = [3, 14];

/**
 * The names that a suitable Python may have, best first.
 * @param {NodeJS.ProcessEnv} environment
 * @returns {string[]}
 */
export function pythonCandidates(environment = process.env) {
  const own = environment.HONE_PYTHON;
  const numbered = [];
  for (let minor = newest[1] ?? 0; minor >= (oldest[1] ?? 0); minor--) numbered.push(`python3.${minor}`);
  return [...(own ? [own] : []), "python3", ...numbered, ...(process.platform === "win32" ? ["python"] : [])];
}

/**
 * @param {string} version e.g. "3.12.1"
 */
export function suits(version) {
  const [major = 0, minor = 0] = version.split(".").map(Number);
  return major === 3 && minor >= (oldest[1] ?? 0) && minor <= (newest[1] ?? 0);
}

const question = "import sys, platform; print(platform.python_version()); print(sys.executable)";

/**
 * The first candidate that runs and is new enough.
 * @param {readonly string[]} candidates
 * @returns {Promise<{executable: string, version: string}>}
 * @throws {SetupError} which names what was found instead, and what to install
 */
export async function findPython(candidates = pythonCandidates()) {
  const found = [];
  for (const candidate of candidates) {
    const { code, output } = await attempt(candidate, ["-c", question], { timeoutMs: 20_000 });
    const [version = "", executable = ""] = output.trim().split(/\r?\n/).slice(-2);
    if (code !== 0 || executable === "") continue; // Not installed, or a version manager's empty shell of it.
    if (suits(version)) return { executable, version };
    found.push(`${candidate} is ${version}`);
  }
  const range = `${oldest.join(".")} to ${newest.join(".")}`;
  throw new SetupError(`the local engine needs Python ${range}, and there is ${found.join(", ") || "none"}`, {
    hint: `Install one: on Debian or Ubuntu "apt install python3 python3-venv", on Fedora "dnf install python3", on macOS "brew install python@3.13", else python.org. ${installElsewhere}`,
    exitCode: 2,
  });
}

const installElsewhere =
  "Where it is not on the PATH, set HONE_PYTHON to a Python that has worker/requirements.lock installed.";
