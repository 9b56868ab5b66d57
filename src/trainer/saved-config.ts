/** The configuration that a run folder keeps. */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { UserError } from "../errors.ts";

/**
 * @returns the config.yaml of a run folder
 * @throws UserError when there is no such run
 */
export function savedConfigFile(folder: string): string {
  if (!existsSync(folder))
    throw new UserError(`${folder}: no such run folder`, { hint: "runs/latest is the newest run" });
  const file = join(folder, "config.yaml");
  if (existsSync(file)) return file;
  throw new UserError(`${folder} is no run folder: it has no config.yaml`, {
    hint: "name the folder of a run, such as runs/latest, not one of its checkpoints",
  });
}
