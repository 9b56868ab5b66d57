/** The packages of examples/agents, which need Node 22. Two of them bring programs of 400 MB, which only nightly needs. */
import { join } from "node:path";
import { packageRoot } from "../setup/paths.mjs";
import { say, secondsSince } from "../setup/report.mjs";
import { run } from "../setup/run.mjs";
import { hashFiles, readStamp, writeStamp } from "../setup/stamp.mjs";

const folder = join(packageRoot, "examples", "agents");
const stamp = join(folder, "node_modules", ".hone-stamp.json");

/** @param {{ programs: boolean }} wanted whether the programs are needed, too */
export async function prepareAgents({ programs }) {
  const lock = hashFiles([join(folder, "package-lock.json")]);
  const ready = readStamp(stamp);
  if (ready?.lock === lock && (ready.programs === "yes" || !programs)) return;
  const start = performance.now();
  say("installing the packages of examples/agents");
  const flags = ["--ignore-scripts", "--no-audit", "--no-fund", ...(programs ? [] : ["--omit=optional"])];
  await run("npm ci in examples/agents", "npm", ["ci", ...flags], { cwd: folder });
  writeStamp(stamp, { lock, programs: programs ? "yes" : "no" });
  say(`packages of examples/agents installed in ${secondsSince(start)}`);
}
