/** Stamps: a small file that says from which inputs a folder was made. No stamp or another one: make it again. */
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";

/**
 * One hash of the names and contents of files, in the order given.
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
    return null; // Half written by a set-up that was interrupted: the same as none.
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
 * Makes a folder under another name and gives it its own only when it is complete, so that an interruption anywhere
 * leaves either the old folder, none, or the new one. Leftovers of earlier interruptions are removed.
 * @param {string} folder
 * @param {(partial: string) => Promise<void>} make
 * @param {string} scratch where it is made, on the same disk
 */
export async function replaceFolder(folder, make, scratch = dirname(folder)) {
  mkdirSync(scratch, { recursive: true });
  removeLeftovers(basename(folder), scratch);
  const partial = join(scratch, `${basename(folder)}.partial-${process.pid}`);
  await make(partial);
  const old = join(scratch, `${basename(folder)}.old-${process.pid}`);
  if (existsSync(folder)) renameSync(folder, old);
  renameSync(partial, folder);
  // Once more: the installer of a set-up that was killed may have gone on for a while.
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
