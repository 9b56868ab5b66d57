/** Installs Python packages, such as model weights and clients, each into a folder of its own. */
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { findPython } from "./find-python.mjs";
import { makeHome, pinnedFolder } from "./home.mjs";
import { withLock } from "./lock.mjs";
import { workerFile } from "./paths.mjs";
import { preparePython } from "./python.mjs";
import { SetupError, say, secondsSince } from "./report.mjs";
import { run } from "./run.mjs";
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

/**
 * Installs another version of transformers than the locked one, with what it needs except torch and numpy. Its packages are
 * not locked.
 * @param {string} version
 * @returns {Promise<string>} the folder, which hides the locked version if it is in PYTHONPATH
 */
export async function prepareTransformers(version) {
  if (!/^\d+\.\d+\.\d+$/.test(version))
    throw new SetupError(`"${version}" is not a version of transformers`, { exitCode: 2 });
  const home = makeHome();
  const folder = join(home, `transformers-${version}`);
  if (existsSync(folder)) return folder;
  const executable = await preparePython();
  await withLock(join(home, "setup.lock"), async () => {
    if (existsSync(folder)) return;
    say(`installing transformers ${version}`);
    const uv = await prepareUv(home, executable);
    const numpy = /^numpy==\S+/m.exec(readFileSync(workerFile("requirements.lock"), "utf8"))?.[0] ?? "numpy";
    const wanted = [`transformers==${version}`, numpy];
    await replaceFolder(folder, async (partial) => {
      const target = ["--python", executable, "--target", partial, "--only-binary", ":all:"];
      await run(`installing transformers ${version}`, uv.command, ["pip", "install", ...target, ...wanted], {
        env: uv.env,
      });
    });
  });
  return folder;
}
