/** The YAML that ships with Hone and with verl, as against the user's own. */
import { sep } from "node:path";
import { fileURLToPath } from "node:url";

/** The package's config folder is two folders above this file in source and in build alike. */
export const shippedFolder = fileURLToPath(new URL("../../config", import.meta.url));

export const verlPackage = "verl.trainer.config";

export function isShipped(file: string): boolean {
  return file.startsWith(shippedFolder + sep) || /[\\/]verl[\\/]trainer[\\/]config[\\/]/.test(file);
}
