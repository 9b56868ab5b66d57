/** Python packages of which only the data is used (model weights), each in a folder of its own under `.hone/packages`. */
import { existsSync, mkdirSync } from "node:fs";
import { join } from "node:path";
import { findPython } from "./find-python.mjs";
import { withLock } from "./lock.mjs";
import { workerFile } from "./paths.mjs";
import { homeOf } from "./python.mjs";
import { SetupError, say, secondsSince } from "./report.mjs";
import { run } from "./run.mjs";
import { hashFiles, readStamp, replaceFolder, writeStamp } from "./stamp.mjs";
import { prepareUv } from "./uv.mjs";

/**
 * @param {string} name `worker/requirements-{name}.lock` pins it
 * @param {string} home
 * @returns {Promise<string>} the folder
 */
export async function preparePackage(name, home = homeOf()) {
  const lock = workerFile(`requirements-${name}.lock`);
  if (!existsSync(lock)) throw new SetupError(`there is no ${lock}`, { exitCode: 2 });
  const folder = join(home, "packages", name);
  const stamp = { lock: hashFiles([lock]) };
  const ready = () => readStamp(join(folder, ".stamp.json"))?.lock === stamp.lock;
  if (ready()) return folder;
  mkdirSync(join(home, "packages"), { recursive: true });
  await withLock(join(home, "setup.lock"), async () => {
    if (ready()) return;
    const start = performance.now();
    say(`fetching the package of ${name}`);
    const { executable } = await findPython();
    const uv = await prepareUv(home, executable);
    await replaceFolder(folder, async (partial) => {
      const args = [
        "pip",
        "install",
        "--python",
        executable,
        "--target",
        partial,
        "--no-deps",
        "--require-hashes",
        "--only-binary",
        ":all:",
        "-r",
        lock,
      ];
      await run(`installing ${name}`, uv.command, args, { env: uv.env });
      writeStamp(join(partial, ".stamp.json"), stamp);
    });
    say(`${name} ready in ${secondsSince(start)}`);
  });
  return folder;
}
