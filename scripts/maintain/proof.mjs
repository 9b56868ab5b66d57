#!/usr/bin/env node
/**
 * `npm run proof -- NAME [flags]`: runs scripts/proofs/NAME/main.ts or main.py. `--help` prints what it does. A proof in Python needs
 * none of Node's packages: `node scripts/maintain/proof.mjs gpu`.
 */
import { spawn } from "node:child_process";
import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { packageRoot } from "../setup/paths.mjs";
import { preparePython } from "../setup/python.mjs";
import { reportFailure, setUpNode } from "../setup.mjs";

const [name = "", ...flags] = process.argv.slice(2);
const folder = join(packageRoot, "scripts", "proofs");
const scriptOf = (/** @type {string} */ proof) =>
  ["main.ts", "main.py"].map((file) => join(folder, proof, file)).find((file) => existsSync(file));
const names = readdirSync(folder).filter((entry) => scriptOf(entry) !== undefined);

async function main() {
  const script = names.includes(name) ? scriptOf(name) : undefined;
  if (script === undefined) {
    console.error(`npm run proof -- NAME [flags]; proofs: ${names.join(", ")}`);
    return 2;
  }
  const isPython = script.endsWith(".py");
  if (!isPython) await setUpNode();
  const [program, ...args] = isPython ? [await preparePython(), script] : [process.execPath, "--import", "tsx", script];
  const child = spawn(program, [...args, ...flags], { cwd: packageRoot, stdio: "inherit" });
  return new Promise((resolve) => child.on("close", (code) => resolve(code ?? 1)));
}

try {
  process.exitCode = await main();
} catch (error) {
  process.exitCode = reportFailure(error);
}
