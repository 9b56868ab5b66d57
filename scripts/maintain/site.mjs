#!/usr/bin/env node
/**
 * `npm run docs:site` builds the site of the documentation into site/.vitepress/dist; `npm run docs:site -- dev` serves it and updates
 * pages while they are edited, and `preview` serves the build. The packages of the site are not those of Hone: they are installed into
 * site/node_modules from site/package-lock.json when they are first needed. SITE_BASE=/hone/ builds for a folder of a server.
 */
import { spawn } from "node:child_process";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { packageRoot } from "../setup/paths.mjs";
import { SetupError, say, secondsSince } from "../setup/report.mjs";
import { run } from "../setup/run.mjs";
import { reportFailure } from "../setup.mjs";

const folder = join(packageRoot, "site");
const modules = join(folder, "node_modules");
const stamp = join(modules, ".hone-lock.json");
const commands = ["build", "dev", "preview"];

async function install() {
  const lock = readFileSync(join(folder, "package-lock.json"), "utf8");
  if (existsSync(stamp) && readFileSync(stamp, "utf8") === lock) return;
  const start = performance.now();
  say("installing the packages of the site");
  await run("npm ci", "npm", ["ci", "--ignore-scripts", "--no-audit", "--no-fund"], { cwd: folder });
  writeFileSync(stamp, lock);
  say(`installed in ${secondsSince(start)}`);
}

/** @param {string[]} args */
function inSite(...args) {
  return new Promise((resolve) => {
    const child = spawn(process.execPath, args, { cwd: folder, stdio: "inherit" });
    // Ctrl-C also reaches it.
    process.on("SIGINT", () => {});
    child.on("close", (code) => resolve(code ?? 1));
  });
}

const [command = "build", ...args] = process.argv.slice(2);
try {
  if (!commands.includes(command)) {
    throw new SetupError(`unknown command "${command}"`, { hint: `Commands: ${commands.join(", ")}.`, exitCode: 2 });
  }
  await install();
  const steps = {
    build: [
      ["typescript/bin/tsc", "-p", "."],
      ["typedoc/bin/typedoc"],
      ["vitepress/bin/vitepress.js", "build", ...args],
    ],
    dev: [["typedoc/bin/typedoc"], ["vitepress/bin/vitepress.js", "dev", ...args]],
    preview: [["vitepress/bin/vitepress.js", "preview", ...args]],
  }[command];
  for (const [program, ...rest] of steps ?? []) {
    process.exitCode = await inSite(join(modules, program ?? ""), ...rest);
    if (process.exitCode !== 0) break;
  }
} catch (error) {
  process.exitCode = reportFailure(error);
}
