#!/usr/bin/env node
/**
 * `npm run bench -- NAME [flags]`: runs bench/NAME/run.ts or run.py. `--help` prints the comment at its top. Without a name
 * it lists the benchmarks.
 */
import { spawn } from "node:child_process";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { delimiter, join } from "node:path";
import { packageRoot } from "../setup/paths.mjs";
import { preparePython } from "../setup/python.mjs";
import { reportFailure, setUpNode } from "../setup.mjs";

const [name = "", ...flags] = process.argv.slice(2);
const folder = join(packageRoot, "bench");
const names = readdirSync(folder, { withFileTypes: true }).flatMap((entry) => (entry.isDirectory() ? entry.name : []));
const script = ["run.ts", "run.py"].map((file) => join(folder, name, file)).find((file) => existsSync(file));

async function main() {
  if (!names.includes(name) || script === undefined) {
    console.error(`npm run bench -- NAME [flags]; benchmarks: ${names.join(", ")}`);
    return 2;
  }
  if (flags.includes("--help") || flags.includes("-h")) {
    console.log(topComment(readFileSync(script, "utf8")));
    return 0;
  }
  await setUpNode();
  const isPython = script.endsWith(".py");
  const [program, ...args] = isPython ? [await preparePython(), script] : [process.execPath, "--import", "tsx", script];
  const pythonPath = [join(packageRoot, "worker"), process.env.PYTHONPATH].filter(Boolean).join(delimiter);
  const env = isPython ? { ...process.env, PYTHONPATH: pythonPath } : process.env;
  const child = spawn(program, [...args, ...flags], { cwd: packageRoot, stdio: "inherit", env });
  return new Promise((resolve) => child.on("close", (code) => resolve(code ?? 1)));
}

/**
 * The text of the first comment or docstring.
 * @param {string} source
 */
function topComment(source) {
  const docstring = /^"""(.*?)"""/s.exec(source)?.[1];
  const comment = /^\/\*\*(.*?)\*\//s.exec(source)?.[1]?.replace(/^ \* ?/gm, "");
  return (docstring ?? comment ?? "").trim();
}

try {
  process.exitCode = await main();
} catch (error) {
  process.exitCode = reportFailure(error);
}
