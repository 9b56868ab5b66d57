/** Runs another program, and turns its output into one readable error if it fails. */
import { spawn } from "node:child_process";
import { statfsSync } from "node:fs";
import { SetupError, size } from "./report.mjs";

/**
 * @typedef {object} RunOptions
 * @property {string} [cwd]
 * @property {NodeJS.ProcessEnv} [env] added to the environment
 * @property {number} [timeoutMs] kills the program after this time
 * @property {(line: string) => void} [onLine] called with each line of its output
 */

/** @type {Set<import("node:child_process").ChildProcess>} */
const running = new Set();

/** Stops the programs that are running. */
export function stopAll() {
  for (const child of running) child.kill("SIGTERM");
}

/**
 * @param {string} command
 * @param {string[]} args
 * @param {RunOptions} options
 * @returns {Promise<{code: number, output: string}>} code 127: it could not be started; 124: it was killed by `timeoutMs`
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
 * @param {string} what its task, for the error message
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
    message: "a downloaded file differs from the lock file's hash",
    hint: "A proxy or mirror changed it, or it is damaged. Clear the package cache and try again, or use another registry.",
  },
  {
    pattern:
      /dns error|error sending request|timed? ?out|ENOTFOUND|ECONNREFUSED|ECONNRESET|EAI_AGAIN|temporary failure|network|connection/i,
    message: "the package registry is not reachable",
    hint: "Check the network. Behind a mirror or proxy, set it for npm (npm config set registry) and for pip (pip config set global.index-url); both settings are used.",
  },
];

/**
 * @param {string} what
 * @param {string} output
 * @param {string} folder
 */
export function explain(what, output, folder) {
  const lines = output.split("\n").filter((line) => line.trim() !== "");
  // npm prints its usage last: lines that name an error are more useful than the last lines.
  const errors = lines.filter((line) => /error|cause|missing/i.test(line));
  const quoted = (errors.length > 0 ? errors.slice(0, 8) : lines.slice(-8)).map((line) => `    ${line}`).join("\n");
  const cause = causes.find(({ pattern }) => pattern.test(output));
  const room = cause === causes[0] ? ` (${size(freeBytes(folder))} left at ${folder})` : "";
  return new SetupError(`${what} failed${cause === undefined ? "" : `: ${cause.message}${room}`}\n${quoted}`, {
    hint: cause?.hint,
  });
}

/** @param {string} folder */
export function freeBytes(folder) {
  const { bavail, bsize } = statfsSync(folder);
  return bavail * bsize;
}
