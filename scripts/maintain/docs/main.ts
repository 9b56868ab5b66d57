/**
 * `npm run docs` writes every generated file. It needs only Node. `npm run docs -- --memory` first computes docs/guide/memory.json again,
 * the needs of real models, with the local engine's Python.
 */
import { execFileSync } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { preparePython } from "../../../src/base/python.ts";
import { builtFiles, pages } from "./generated-files.ts";

const root = fileURLToPath(new URL("../../..", import.meta.url));
if (process.argv.includes("--memory")) {
  const { python } = await preparePython();
  execFileSync(python, [join(root, "scripts/maintain/memory-table.py")], { stdio: "inherit" });
}
for (const [name, make] of Object.entries({ ...pages, ...builtFiles })) {
  const file = join(root, name);
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, make());
  console.log(name);
}
