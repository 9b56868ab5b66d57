/** A stamp is a file with the hash of the inputs of a folder. A folder with no stamp or an old one is built again. */
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";

/**
 * Hashes the names and contents of files, in this order.
 * @param {string[]} files
 */
export function hashFiles(files) {
  const hash = createHash("sha256");
  for (const file of files)
    hash
      .update(`${basename(file)}\0`)
      .update(readFileSync(file))
      .update("\0");
  return hash.digest("hex");
}

/**
 * @param {string} file
 * @returns {Record<string, string> | null}
 */
export function readStamp(file) {
  if (!existsSync(file)) return null;
  try {
    return JSON.parse(readFileSync(file, "utf8"));
  } catch {
    return null; // Half-written by an interrupted set-up: the same as a missing stamp.
  }
}

/**
 * @param {string} file
 * @param {Record<string, string>} stamp
 */
export function writeStamp(file, stamp) {
  const partial = `${file}.partial-${process.pid}`;
  writeFileSync(partial, `${JSON.stringify(stamp, null, 2)}\n`);
  renameSync(partial, file);
}

/**
 * Builds a folder under a temporary name and renames it when it is complete, so that an interruption leaves the old
 * folder, the new one, or no folder. Removes the leftovers of earlier interruptions.
 * @param {string} folder
 * @param {(partial: string) => Promise<void>} make
 * @param {string} scratch the folder to build it in, on the same disk
 */
export async function replaceFolder(folder, make, scratch = dirname(folder)) {
  mkdirSync(scratch, { recursive: true });
  removeLeftovers(basename(folder), scratch);
  const partial = join(scratch, `${basename(folder)}.partial-${process.pid}`);
  await make(partial);
  const old = join(scratch, `${basename(folder)}.old-${process.pid}`);
  if (existsSync(folder)) renameSync(folder, old);
  renameSync(partial, folder);
  // Again: the installer of a killed set-up may have continued for a while.
  removeLeftovers(basename(folder), scratch);
}

/**
 * @param {string} name
 * @param {string} scratch
 */
function removeLeftovers(name, scratch) {
  for (const entry of readdirSync(scratch)) {
    if (entry.startsWith(`${name}.partial-`) || entry.startsWith(`${name}.old-`)) {
      rmSync(join(scratch, entry), { recursive: true, force: true, maxRetries: 3 });
    }
  }
}
