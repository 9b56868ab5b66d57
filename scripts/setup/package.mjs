/** Installs Python packages, such as model weights and clients, each into a folder of its own. */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { findPython } from "./find-python.mjs";
import { makeHome, pinnedFolder } from "./home.mjs";
import { withLock } from "./lock.mjs";
import { workerFile } from "./paths.mjs";
import { preparePython } from "./python.mjs";
import { SetupError, say, secondsSince } from "./report.mjs";
import { replaceFolder } from "./stamp.mjs";
import { installLock, prepareUv } from "./uv.mjs";

/** Packages that the registry has only as source, which the worker's Python builds. */
const builtHere = new Set(["deepspeed"]);

/**
 * @param {string} name `worker/requirements-{name}.lock` pins it
 * @returns {Promise<string>} the folder
 */
export async function preparePackage(name) {
  const lock = workerFile(`requirements-${name}.lock`);
  if (!existsSync(lock)) throw new SetupError(`${lock} does not exist`, { exitCode: 2 });
  const folder = pinnedFolder(name);
  if (existsSync(folder)) return folder;
  const isBuilt = builtHere.has(name);
  const executable = isBuilt ? await preparePython() : (await findPython()).executable;
  const home = makeHome();
  await withLock(join(home, "setup.lock"), async () => {
    if (existsSync(folder)) return;
    const start = performance.now();
    say(`installing the package of ${name}`);
    const uv = await prepareUv(home, executable);
    const fromSource = isBuilt ? ["--no-binary", name, "--no-build-isolation"] : [];
    await replaceFolder(folder, (partial) =>
      installLock(uv, ["--python", executable, "--target", partial, ...fromSource], lock, name),
    );
    say(`${name} ready in ${secondsSince(start)}`);
  });
  return folder;
}
