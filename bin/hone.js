#!/usr/bin/env node
/** The `hone` command: runs the build. Sources are built by `npm start` or the set-up. */
import { existsSync } from "node:fs";

const main = new URL("../dist/cli/main.js", import.meta.url);
if (existsSync(main)) await import(main.href);
else {
  console.error(
    'hone: this checkout is not built yet\n  what to do: "npm start", or "node scripts/setup.mjs node" for the build alone',
  );
  process.exitCode = 1;
}
