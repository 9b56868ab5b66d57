/** LoRA adapters that a run publishes for its inference server: a folder for each version. */
import { randomUUID } from "node:crypto";
import { mkdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import type { Learner, Published } from "../engine.ts";
import type { Control } from "./control.ts";

/**
 * A learner that publishes adapter folders. Names and paths never repeat, also over several processes: servers keep an
 * adapter's weights and the cached prefixes of its prompts by them.
 *
 * @param folder for the adapters, which the server can read by the same path
 */
export function publishingAdapters(
  learner: Learner,
  folder: string,
): { learner: Learner; first(): Promise<Published> } {
  const run = randomUUID().slice(0, 8);
  let count = 0;
  async function exportAs(version: number): Promise<Published> {
    const name = `hone-${run}-${++count}-v${version}`;
    const path = join(folder, name);
    mkdirSync(folder, { recursive: true });
    await learner.export(path, "adapter");
    return { kind: "adapter", version, name, path };
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
