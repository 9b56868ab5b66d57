#!/usr/bin/env node
/** The `hone` command: runs the build in dist/, which `npm start` and set-up create. */
import { closeSync, existsSync, openSync } from "node:fs";
import { fileURLToPath } from "node:url";

const main = new URL("../dist/apps/cli/main.js", import.meta.url);

/** Node loads modules many at a time. Without free descriptors it fails with a stack, or says that a package is missing. */
function canOpenFiles() {
  const opened = [];
  try {
    while (opened.length < 128) opened.push(openSync(fileURLToPath(import.meta.url), "r"));
    return true;
  } catch (error) {
    const { code } = /** @type {NodeJS.ErrnoException} */ (error);
    if (code !== "EMFILE" && code !== "ENFILE") throw error;
    return false;
  } finally {
    for (const file of opened) closeSync(file);
  }
}

if (!existsSync(main)) {
  console.error(
    'hone: this checkout is not built\n  fix: run "npm start", or "node scripts/setup.mjs node" to build only',
  );
  process.exitCode = 1;
} else if (canOpenFiles()) await import(main.href);
else {
  console.error("hone: too few files may be open\n  fix: raise the limit of this shell, e.g. ulimit -n 1024");
  process.exitCode = 2;
}
