/** Another version of Node, from the packages of its binaries on npm, for tests. */
import { existsSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { makeHome } from "./home.mjs";
import { withLock } from "./lock.mjs";
import { say } from "./report.mjs";
import { run } from "./run.mjs";
import { replaceFolder } from "./stamp.mjs";

/**
 * @param {string} version such as 22.23.3
 * @returns {Promise<string>} the program
 */
export async function prepareNodeVersion(version) {
  const home = makeHome();
  const name = `node-${process.platform}-${process.arch}`;
  const folder = join(home, `node-${version}`);
  const program = join(folder, "node_modules", name, "bin", process.platform === "win32" ? "node.exe" : "node");
  await withLock(join(home, "setup.lock"), async () => {
    if (existsSync(program)) return;
    say(`installing Node ${version}`);
    await replaceFolder(folder, async (partial) => {
      mkdirSync(partial, { recursive: true });
      writeFileSync(join(partial, "package.json"), '{ "private": true }');
      const flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock"];
      await run(`npm install ${name}`, "npm", ["install", ...flags, `${name}@${version}`], { cwd: partial });
    });
  });
  return program;
}
