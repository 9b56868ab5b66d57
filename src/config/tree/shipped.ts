/** Identifies YAML files that ship with Hone or verl, as opposed to the user's own. */
import { sep } from "node:path";
import { fileURLToPath } from "node:url";

/** The folder `config` at the root of the package, three folders above this file in the source and in the build. */
export const shippedFolder = fileURLToPath(new URL("../../../config", import.meta.url));

export const verlPackage = "verl.trainer.config";

export function isShipped(file: string): boolean {
  return file.startsWith(shippedFolder + sep) || /[\\/]verl[\\/]trainer[\\/]config[\\/]/.test(file);
}
