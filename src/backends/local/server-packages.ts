/** What inference servers need for a model. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { preparePackage } from "../../python/prepare.ts";

/**
 * SmolVLM's processor needs a package that vLLM does not install.
 *
 * @param folder the model's
 * @returns the folder of the package; undefined for other models
 */
export async function serverPackages(folder: string): Promise<string | undefined> {
  return readModelType(folder) === "smolvlm" ? preparePackage("num2words") : undefined;
}

export const readModelType = (folder: string): string =>
  JSON.parse(readFileSync(join(folder, "config.json"), "utf8")).model_type;
