/** Adapters that a killed process of the run left at its inference server. */
import { rmSync } from "node:fs";
import { join } from "node:path";
import type { Control } from "../control/control.ts";

/** Unloads and removes adapters and their folder. */
export async function removeLeftAdapters(control: Control, left: { name: string; path: string }[], folder: string) {
  for (const { name, path } of left) if (path.startsWith(join(folder, "/"))) await control.unloadAdapter(name);
  rmSync(folder, { recursive: true, force: true });
}
