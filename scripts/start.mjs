#!/usr/bin/env node
/**
 * `npm start`: installs what is missing and trains the first example. Arguments are passed to the training, e.g.
 * `npm start -- rllm.trainer.total_batches=4`. Python is prepared when the local engine is first used.
 */
import { spawn } from "node:child_process";
import { constants } from "node:os";
import { join } from "node:path";
import { packageRoot } from "./setup/paths.mjs";
import { reportFailure, setUpNode } from "./setup.mjs";

const example = "examples/larger-number/train.ts";

try {
  await setUpNode();
  const args = [join(packageRoot, "bin/hone.js"), "train", example, ...process.argv.slice(2)];
  const child = spawn(process.execPath, args, { cwd: packageRoot, stdio: "inherit" });
  // Ctrl-C also reaches the training, which saves its state; this process waits. Other signals are passed on.
  process.on("SIGINT", () => {});
  for (const signal of /** @type {const} */ (["SIGTERM", "SIGHUP"])) process.on(signal, () => child.kill(signal));
  child.on("close", (code, signal) => {
    process.exit(code ?? 128 + (signal === null ? 0 : constants.signals[signal]));
  });
} catch (error) {
  process.exitCode = reportFailure(error);
}
