/** The folders through which a run's weights reach a sampler in another process: one for each version. */
import { randomUUID } from "node:crypto";
import { existsSync, mkdirSync, statfsSync } from "node:fs";
import { join } from "node:path";
import { temporaryFolder } from "../files/temporary-names.ts";
import type { Learner, ModelInfo, Published } from "./engine.ts";

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

const sharedMemory = "/dev/shm";

/**
 * Where all weights are published: in memory if the sampler is on this machine and there is room, else in the run's folder.
 * A killed process leaves its folder in memory to the next one, which removes it.
 */
export function folderForWeights(
  runFolder: string,
  model: Pick<ModelInfo, "parameters" | "dtype">,
  isHere: boolean,
): string {
  const bytes = model.parameters * (model.dtype === "float32" ? 4 : 2);
  if (!isHere || !existsSync(sharedMemory)) return runFolder;
  const { bavail, bsize } = statfsSync(sharedMemory);
  // Two versions, while the sampler reads one of them into memory of its own.
  const fits = 2.1 * bytes < bavail * bsize && 4 * bytes < process.availableMemory();
  return fits ? temporaryFolder("hone-weights-", sharedMemory) : runFolder;
}
