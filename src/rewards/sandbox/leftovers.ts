/** Removes what sandboxes of killed processes left: folders, cgroups and processes. */
import { mkdtemp, readdir } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { isOwnerGone, ownerMark } from "../../files/temporary-names.ts";
import { removeLeftCgroups } from "./cgroup.ts";
import { killMarked } from "./process-table.ts";
import { removeProgramFolder } from "./program-folder.ts";

const prefix = "hone-sandbox-";

/** Creates a folder for a program. Its name contains the process that removes it. */
export const createFolder = () => mkdtemp(join(tmpdir(), `${prefix}${ownerMark}-`));

const isLeft = (name: string) => name.startsWith(prefix) && isOwnerGone(name);

export async function removeLeftovers(): Promise<void> {
  removeLeftCgroups(isLeft);
  const left = (await readdir(tmpdir())).filter(isLeft);
  if (left.length > 0) killMarked(left.map((name) => `HONE_SANDBOX=${name}`));
  for (const name of left) {
    // Another user's folder stays: the system's temporary folder is shared.
    await removeProgramFolder(join(tmpdir(), name)).catch(() => {});
  }
}
