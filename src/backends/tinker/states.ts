/** A saved policy: a folder with the name of a checkpoint that the service stores. */
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { UserError } from "../../errors.ts";
import { isTinkerPath, parseTinkerPath } from "../../tinker-protocol/tinker-path.ts";
import type { AdapterSpec } from "../engine.ts";

export const stateFile = "tinker.json";

const savedSchema = z.strictObject({ path: z.string(), version: z.int(), model: z.string() });
export type SavedState = z.output<typeof savedSchema>;

/** Moves checkpoints out of a service that does not outlive its client. */
export interface StateTransfer {
  /** Moves a checkpoint into an existing folder. */
  moveOut(path: string, folder: string): Promise<void>;
  /** Copies it back temporarily. Returns the function that removes it again. */
  copyBack(folder: string, path: string, adapter: AdapterSpec & { kind: "lora" }): Promise<() => Promise<void>>;
}

/** Undefined if the folder does not have this file. */
export function findState(folder: string): SavedState | undefined {
  const file = join(folder, stateFile);
  if (!existsSync(file)) return undefined;
  const parsed = savedSchema.safeParse(JSON.parse(readFileSync(file, "utf8")));
  if (!parsed.success) throw new UserError(`${file}: ${z.prettifyError(parsed.error)}`);
  return parsed.data;
}

/** Reads a folder of `saveState`, or a path of the service itself: `tinker://{run}/weights/{name}`. */
export function readState(folder: string, model: string): SavedState {
  if (isTinkerPath(folder)) return { path: folder, version: 0, model };
  const saved = findState(folder);
  if (saved === undefined) {
    throw new UserError(`${folder} is not a checkpoint of a Tinker service`, {
      hint: "Another engine wrote it: use the rllm.backend of that run.",
    });
  }
  if (saved.model !== model)
    throw new UserError(`${folder} belongs to the model ${saved.model}, but this run trains ${model}`);
  return saved;
}

/** Where the service lists `tinker://{run}/{kind}/{name}`. */
export function addressOf(path: string): string {
  const { run, kind, name } = parseTinkerPath(path);
  return `training_runs/${run}/checkpoints/${kind}/${name}`;
}
