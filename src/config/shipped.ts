/** Identifies YAML files that ship with Hone or verl, as opposed to the user's own. */
import { sep } from "node:path";
import { fileURLToPath } from "node:url";

/** The package's config folder is two folders above this file, both in the source and in the build. */
export const shippedFolder = fileURLToPath(new URL("../../config", import.meta.url));

export const verlPackage = "verl.trainer.config";

export function isShipped(file: string): boolean {
  return file.startsWith(shippedFolder + sep) || /[\\/]verl[\\/]trainer[\\/]config[\\/]/.test(file);
}
