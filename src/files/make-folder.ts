import { mkdirSync, statSync } from "node:fs";
import { dirname } from "node:path";

/**
 * Creates a folder and its parents. Node's `recursive` reports ENOENT for a read-only disk and never returns below /proc.
 *
 * @param mode of the folders that it creates
 * @throws the file system's error
 */
export function makeFolder(path: string, mode = 0o777): void {
  try {
    mkdirSync(path, { mode });
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    const parent = dirname(path);
    if (code === "EEXIST" && statSync(path).isDirectory()) return;
    if (code !== "ENOENT" || parent === path) throw error;
    makeFolder(parent, mode);
    // Does not retry ENOENT again: /proc reports it for folders that exist.
    mkdirSync(path, { mode });
  }
}
