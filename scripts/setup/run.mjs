/** Runs another program to its end; its output is kept, and turned into one readable error when it fails. */
import { spawn } from "node:child_process";
import { statfsSync } from "node:fs";
import { SetupError, size } from "./report.mjs";

/**
 * @typedef {object} RunOptions
 * @property {string} [cwd]
 * @property {NodeJS.ProcessEnv} [env] added to the environment
 * @property {number} [timeoutMs] ends the program after so long
 * @property {(line: string) => void} [onLine] called for each line of its output
 */

/** @type {Set<import("node:child_process").ChildProcess>} */
const running = new Set();

/** Ends what is still running, e.g. when the set-up itself is asked to end. */
export function stopAll() {
  for (const child of running) child.kill("SIGTERM");
}

/**
 * @param {string} command
 * @param {string[]} args
 * @param {RunOptions} options
 * @returns {Promise<{code: number, output: string}>} code 127: it could not be started; 124: it ran out of time
 */
export function attempt(command, args, { cwd, env, timeoutMs, onLine } = {}) {
  return new Promise((resolve) => {
    const child = spawn(command, args, {
      cwd,
      env: { ...process.env, ...env },
      stdio: ["ignore", "pipe", "pipe"],
      shell: process.platform === "win32" && command === "npm",
    });
    running.add(child);
    let output = "";
    let unfinished = "";
    let late = false;
    /** @param {Buffer} chunk */
    const take = (chunk) => {
      output += chunk;
      const lines = (unfinished + chunk).split(/[\r\n]+/);
      unfinished = lines.pop() ?? "";
      for (const line of lines) if (line.trim() !== "") onLine?.(line.trimEnd());
    };
    child.stdout.on("data", take);
    child.stderr.on("data", take);
    const timer = timeoutMs === undefined ? undefined : setTimeout(() => (late = child.kill("SIGKILL")), timeoutMs);
    /** @param {number} code */
    const end = (code) => {
      clearTimeout(timer);
      running.delete(child);
      resolve({ code, output });
    };
    child.on("error", (error) => {
      output += error.message;
      end(127);
    });
    child.on("close", (code) => end(late ? 124 : (code ?? 1)));
  });
}

/**
 * @param {string} what what it was to do, for the error
 * @param {string} command
 * @param {string[]} args
 * @param {RunOptions} options
 * @returns {Promise<string>} its output
 * @throws {SetupError} when it fails
 */
export async function run(what, command, args, options = {}) {
  const { code, output } = await attempt(command, args, options);
  if (code !== 0) throw explain(what, output, options.cwd ?? process.cwd());
  return output;
}

const causes = [
  {
    pattern: /no space left|ENOSPC|os error 28|disk quota/i,
    message: "the disk is full",
    hint: "Free some space and run it again; what was downloaded so far is kept.",
  },
  {
    pattern: /hash(es)? (mismatch|do not match)|THESE PACKAGES DO NOT MATCH|EINTEGRITY/i,
    message: "a download is not the file that the lock file names",
    hint: "A proxy or mirror changed it, or it is damaged. Clear the package cache and try again, or use the registry itself.",
  },
  {
    pattern:
      /dns error|error sending request|timed? ?out|ENOTFOUND|ECONNREFUSED|ECONNRESET|EAI_AGAIN|temporary failure|network|connection/i,
    message: "the package registry could not be reached",
    hint: "Check the network. Behind a mirror or proxy, set it for npm (npm config set registry) and for pip (pip config set global.index-url); both are honoured here.",
  },
];

/**
 * @param {string} what
 * @param {string} output
 * @param {string} folder
 */
export function explain(what, output, folder) {
  const lines = output.split("\n").filter((line) => line.trim() !== "");
  // npm ends with its usage and uv with causes: the lines that name an error say more than the last ones.
  const telling = lines.filter((line) => /error|cause|missing/i.test(line));
  const said = (telling.length > 0 ? telling.slice(0, 8) : lines.slice(-8)).map((line) => `    ${line}`).join("\n");
  const cause = causes.find(({ pattern }) => pattern.test(output));
  const room = cause === causes[0] ? ` (${size(freeBytes(folder))} left at ${folder})` : "";
  return new SetupError(`${what} failed${cause === undefined ? "" : `: ${cause.message}${room}`}\n${said}`, {
    hint: cause?.hint,
  });
}

/** @param {string} folder */
export function freeBytes(folder) {
  const { bavail, bsize } = statfsSync(folder);
  return bavail * bsize;
}
