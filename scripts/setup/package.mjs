/** Installs Python packages, such as model weights and clients, each into a folder of its own in `.hone/packages`. */
import { existsSync, mkdirSync } from "node:fs";
import { join } from "node:path";
import { findPython } from "./find-python.mjs";
import { withLock } from "./lock.mjs";
import { workerFile } from "./paths.mjs";
import { homeOf, preparePython } from "./python.mjs";
import { SetupError, say, secondsSince } from "./report.mjs";
import { hashFiles, readStamp, replaceFolder, writeStamp } from "./stamp.mjs";
import { installLock, prepareUv } from "./uv.mjs";

/** Packages that the registry has only as source, which the worker's Python builds. */
const builtHere = new Set(["deepspeed"]);

/**
 * @param {string} name `worker/requirements-{name}.lock` pins it
 * @param {string} home
 * @returns {Promise<string>} the folder
 */
export async function preparePackage(name, home = homeOf()) {
  const lock = workerFile(`requirements-${name}.lock`);
  if (!existsSync(lock)) throw new SetupError(`${lock} does not exist`, { exitCode: 2 });
  const folder = join(home, "packages", name);
  const stamp = { lock: hashFiles([lock]) };
  const ready = () => readStamp(join(folder, ".stamp.json"))?.lock === stamp.lock;
  if (ready()) return folder;
  const isBuilt = builtHere.has(name);
  const executable = isBuilt ? await preparePython({ home }) : (await findPython()).executable;
  mkdirSync(join(home, "packages"), { recursive: true });
  await withLock(join(home, "setup.lock"), async () => {
    if (ready()) return;
    const start = performance.now();
    say(`installing the package of ${name}`);
    const uv = await prepareUv(home, executable);
    await replaceFolder(folder, async (partial) => {
      const fromSource = isBuilt ? ["--no-binary", name, "--no-build-isolation"] : [];
      await installLock(uv, ["--python", executable, "--target", partial, ...fromSource], lock, name);
      writeStamp(join(partial, ".stamp.json"), stamp);
    });
    say(`${name} ready in ${secondsSince(start)}`);
  });
  return folder;
}
