/** Writes, measures and removes the folder of a program. */
import { execFile } from "node:child_process";
import { lstat, mkdir, opendir, rm, writeFile } from "node:fs/promises";
import { dirname, join, normalize } from "node:path";
import { promisify } from "node:util";
import { UserError } from "../../errors.ts";

export async function writeFiles(folder: string, files: Readonly<Record<string, string>>): Promise<void> {
  await mkdir(folder);
  for (const [name, text] of Object.entries(files)) {
    const path = normalize(join(folder, name));
    if (!path.startsWith(`${folder}/`)) {
      throw new UserError(`the sandbox's file ${JSON.stringify(name)} is outside its folder`, {
        hint: "use a path relative to the work folder, without ..",
      });
    }
    await mkdir(dirname(path), { recursive: true });
    await writeFile(path, text);
  }
}

const mostEntries = 16_384;

/** Whether a folder has more than `bytes`, or more files than a sandbox may have. */
export async function isFolderOver(folder: string, bytes: number): Promise<boolean> {
  let [size, entries] = [0, 0];
  const waiting = [folder];
  for (let next = waiting.pop(); next !== undefined; next = waiting.pop()) {
    try {
      for await (const entry of await opendir(next)) {
        const path = join(next, entry.name);
        if (entry.isDirectory()) waiting.push(path);
        else size += (await lstat(path)).blocks * 512;
        if (size > bytes || ++entries > mostEntries) return true;
      }
    } catch {
      // The program removed the folder, or removed its own access.
    }
  }
  return false;
}

/** Also removes folders without access rights, and paths that are too long for system calls. */
export async function removeProgramFolder(folder: string): Promise<void> {
  try {
    await rm(folder, { recursive: true, force: true });
  } catch {
    await promisify(execFile)("sh", ["-c", 'chmod -R u+rwX -- "$1"; rm -rf -- "$1"', "sh", folder]);
  }
}
