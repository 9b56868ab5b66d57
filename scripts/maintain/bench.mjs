#!/usr/bin/env node
/** `npm run bench -- NAME [flags]`: runs bench/NAME/run.ts. Without a name it lists the benchmarks. */
import { spawn } from "node:child_process";
import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { packageRoot } from "../setup/paths.mjs";
import { reportFailure, setUpNode } from "../setup.mjs";

const [name = "", ...flags] = process.argv.slice(2);
const script = join(packageRoot, "bench", name, "run.ts");
if (name === "" || !existsSync(script)) {
  const names = readdirSync(join(packageRoot, "bench"), { withFileTypes: true }).filter((entry) => entry.isDirectory());
  console.error(`npm run bench -- NAME [flags]; benchmarks: ${names.map((entry) => entry.name).join(", ")}`);
  process.exitCode = 2;
} else {
  try {
    await setUpNode();
    const child = spawn(process.execPath, ["--import", "tsx", script, ...flags], {
      cwd: packageRoot,
      stdio: "inherit",
    });
    child.on("close", (code) => {
      process.exitCode = code ?? 1;
    });
  } catch (error) {
    process.exitCode = reportFailure(error);
  }
}
