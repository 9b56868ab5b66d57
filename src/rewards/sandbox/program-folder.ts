/** Writes and removes the folder of a program. */
import { execFile } from "node:child_process";
import { mkdir, readdir, rm, writeFile } from "node:fs/promises";
import { dirname, join, normalize } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { UserError } from "../../errors.ts";
import { findInterpreter } from "./interpreters.ts";

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

const remover = fileURLToPath(new URL("../../../worker/sandbox/work_folder.py", import.meta.url));
const maxSeconds = 10;

/** Removes a folder that an untrusted program filled. Does not wait for more than ten seconds: the rest is removed meanwhile. */
export async function removeProgramFolder(folder: string): Promise<void> {
  if (await removeFlat(folder)) return;
  const { program } = await findInterpreter("python");
  const removal = promisify(execFile)(program, ["-I", "-S", "-B", remover, folder]);
  const late = sleep(maxSeconds * 1000, "late" as const, { ref: false });
  if ((await Promise.race([removal, late])) !== "late") return;
  process.emitWarning(`the sandbox's folder ${folder} takes more than ${maxSeconds} seconds to remove`);
  removal.catch(({ message }: Error) =>
    process.emitWarning(`the sandbox's folder ${folder} was not removed: ${message}`),
  );
}

/** Saves starting a process for most programs, which create no folder. */
async function removeFlat(folder: string): Promise<boolean> {
  try {
    const entries = await readdir(join(folder, "files"), { withFileTypes: true });
    if (entries.length > 1000 || entries.some((entry) => entry.isDirectory())) return false;
    await rm(folder, { recursive: true });
    return true;
  } catch {
    return false; // The folder is closed, or a name is not UTF-8.
  }
}
