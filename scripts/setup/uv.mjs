/** Installs uv at a pinned version, with pip. */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { pinnedFolder } from "./home.mjs";
import { pythonIn, workerFile } from "./paths.mjs";
import { SetupError, say, secondsSince } from "./report.mjs";
import { attempt, explain, run } from "./run.mjs";
import { replaceFolder } from "./stamp.mjs";

/** @typedef {{command: string, env: NodeJS.ProcessEnv}} Uv the program and the environment to run it in */

/**
 * @param {string} home
 * @param {string} python a suitable Python
 * @returns {Promise<Uv>}
 */
export async function prepareUv(home, python) {
  const folder = pinnedFolder("uv", home);
  const command = join(folder, process.platform === "win32" ? "Scripts/uv.exe" : "bin/uv");
  if (!existsSync(command)) {
    const start = performance.now();
    await replaceFolder(folder, (partial) => installUv(python, partial, workerFile("requirements-uv.lock")));
    say(`installer (uv) ready in ${secondsSince(start)}`);
  }
  return { command, env: { ...(await pipSettings(python)), UV_PYTHON_DOWNLOADS: "never", UV_NO_PROGRESS: "1" } };
}

const wheelsOnly = ["--only-binary", ":all:"];
const exact = ["--require-hashes", "-r"];

/**
 * @param {string} python
 * @param {string} folder
 * @param {string} lock
 */
async function installUv(python, folder, lock) {
  const install = ["-m", "pip", "install", "--disable-pip-version-check", "--quiet", ...wheelsOnly, ...exact, lock];
  const venv = await attempt(python, ["-m", "venv", folder]);
  // Debian has venv in a separate package; pip can install into a folder without it.
  const [pip, args] = venv.code === 0 ? [pythonIn(folder), install] : [python, [...install, "--target", folder]];
  const installed = await attempt(pip, args);
  if (installed.code === 0) return;
  if (venv.code !== 0 && /No module named pip/.test(installed.output)) {
    throw new SetupError(`${python} has neither venv nor pip`, {
      hint: 'On Debian or Ubuntu: "apt install python3-venv", then run this again.',
      exitCode: 2,
    });
  }
  throw explain("installing uv", installed.output, folder);
}

/**
 * Installs exactly the packages of a lock file.
 * @param {Uv} uv
 * @param {string[]} target flags that say where to install
 * @param {string} lock
 * @param {string} name for the error message
 * @param {(line: string) => void} [onLine]
 * @param {boolean} [builds] one of the packages exists only as source
 */
export async function installLock(uv, target, lock, name, onLine = () => {}, builds = false) {
  const args = ["pip", "install", ...target, "--no-deps", ...(builds ? [] : wheelsOnly), ...exact, lock];
  await run(`installing ${name}`, uv.command, args, { env: uv.env, onLine });
}

/**
 * uv does not read pip's settings, so a mirror or certificate set for pip is passed on.
 * @param {string} python
 * @returns {Promise<NodeJS.ProcessEnv>}
 */
async function pipSettings(python) {
  const { code, output } = await attempt(python, ["-m", "pip", "config", "list"], { timeoutMs: 20_000 });
  return uvSettings(code === 0 ? output : "", process.env);
}

/**
 * @param {string} pipConfig what `pip config list` prints
 * @param {NodeJS.ProcessEnv} environment
 * @returns {NodeJS.ProcessEnv}
 */
export function uvSettings(pipConfig, environment) {
  /** @param {string} key */
  const read = (key) => new RegExp(`^(?:global|install|:env:)\\.${key}='(.*)'$`, "m").exec(pipConfig)?.[1];
  /** @type {NodeJS.ProcessEnv} */
  const settings = {};
  const index = read("index-url");
  const more = read("extra-index-url");
  const certificate = read("cert");
  if (index && !environment.UV_DEFAULT_INDEX && !environment.UV_INDEX_URL) settings.UV_DEFAULT_INDEX = index;
  if (more && !environment.UV_INDEX && !environment.UV_EXTRA_INDEX_URL)
    settings.UV_INDEX = more
      .split(/\s+|\\n/)
      .filter(Boolean)
      .join(" ");
  if (certificate && !environment.SSL_CERT_FILE) settings.SSL_CERT_FILE = certificate;
  return settings;
}
