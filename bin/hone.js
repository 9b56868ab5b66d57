#!/usr/bin/env node
/** The `hone` command: runs the build in dist/, which `npm start` and set-up create. */
import { existsSync } from "node:fs";

const main = new URL("../dist/cli/main.js", import.meta.url);
if (existsSync(main)) await import(main.href);
else {
  console.error(
    'hone: this checkout is not built\n  fix: run "npm start", or "node scripts/setup.mjs node" to build only',
  );
  process.exitCode = 1;
}
