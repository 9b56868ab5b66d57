/** `npm run docs`: writes what is generated from the schema: the reference pages, base.yaml and the JSON Schema; and tables of memory. */
import { execFileSync } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { preparePython } from "../../../src/base/python.ts";
import { generatedFiles } from "./generated-files.ts";

const root = fileURLToPath(new URL("../../..", import.meta.url));
const { python } = await preparePython();
execFileSync(python, [join(root, "scripts/maintain/memory-table.py")], { stdio: "inherit" });
for (const [name, make] of Object.entries(generatedFiles)) {
  const file = join(root, name);
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, make());
  console.log(name);
}
