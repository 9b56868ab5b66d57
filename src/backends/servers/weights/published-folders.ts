/** The folders through which a run's weights reach its inference server: one for each version. */
import { randomUUID } from "node:crypto";
import { existsSync, mkdirSync, rmSync, statfsSync } from "node:fs";
import { join } from "node:path";
import { temporaryFolder } from "../../../files/temporary-names.ts";
import type { Learner, ModelInfo, Published } from "../../engine.ts";
import type { Control } from "../control/control.ts";
import type { Server } from "../server.ts";
import type { ServerGroup } from "../server-group.ts";

type Kind = "adapter" | "weights";

/**
 * A learner that publishes folders. Names and paths never repeat, also over several processes: servers keep an adapter's
 * weights and the cached prefixes of its prompts by them.
 *
 * @param folder the server can read it by the same path
 */
export function publishingFolders(
  learner: Learner,
  kind: Kind,
  folder: string,
): { learner: Learner; first(): Promise<Published> } {
  const run = randomUUID().slice(0, 8);
  let count = 0;
  async function exportAs(version: number): Promise<Published> {
    const name = `hone-${run}-${++count}-v${version}`;
    const path = join(folder, name);
    mkdirSync(folder, { recursive: true });
    await learner.export(path, kind === "adapter" ? "adapter" : "merged");
    return { kind, version, name, path };
  }
  return {
    /** The weights before training. */
    first: () => exportAs(0),
    learner: {
      ...learner,
      publish: async () => exportAs((await learner.publish()).version),
      loadState: async (dir, options) => exportAs((await learner.loadState(dir, options)).version),
    },
  };
}

/** Unloads and removes adapters that a killed process of the run left. */
export async function removeLeftAdapters(control: Control, left: { name: string; path: string }[], folder: string) {
  for (const { name, path } of left) if (path.startsWith(join(folder, "/"))) await control.unloadAdapter(name);
  rmSync(folder, { recursive: true, force: true });
}

const sharedMemory = "/dev/shm";

/**
 * Where all weights are published: in memory if the server is on this machine and there is room, else in the run's folder.
 * A killed process leaves its folder in memory to the next one, which removes it.
 */
export function folderForWeights(
  runFolder: string,
  model: Pick<ModelInfo, "parameters" | "dtype">,
  { servers }: Pick<ServerGroup, "servers">,
): string {
  const bytes = model.parameters * (model.dtype === "float32" ? 4 : 2);
  if (!servers.every(isThisMachine) || !existsSync(sharedMemory)) return runFolder;
  const { bavail, bsize } = statfsSync(sharedMemory);
  // Two versions, while the server reads one of them into memory of its own.
  const fits = 2.1 * bytes < bavail * bsize && 4 * bytes < process.availableMemory();
  return fits ? temporaryFolder("hone-weights-", sharedMemory) : runFolder;
}

const isThisMachine = ({ url }: Server) => ["localhost", "127.0.0.1", "[::1]"].includes(new URL(url).hostname);
