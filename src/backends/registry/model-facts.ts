/** What the files of a configured model say before it is loaded. */
import { readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import type { Config } from "../../config/schema.ts";
import { UserError } from "../../errors.ts";
import { type ModelSource, modelSource } from "../local/models.ts";

/** Whether the model reads images; undefined if its files are not on this machine, or another backend refuses its name. */
export function modelReadsImages({ model }: Pick<Config, "model">): boolean | undefined {
  const source = sourceOf(model.name);
  if (source === undefined || source.kind === "hub") return undefined;
  if (source.kind === "package" || !statSync(source.path).isDirectory()) return false;
  try {
    return "vision_config" in JSON.parse(readFileSync(join(source.path, "config.json"), "utf8"));
  } catch {
    // Loading the model reports files that cannot be read.
    return undefined;
  }
}

function sourceOf(name: string): ModelSource | undefined {
  try {
    return modelSource(name);
  } catch (error) {
    if (error instanceof UserError) return undefined;
    throw error;
  }
}
