/** Identifies YAML files that ship with Hone or verl, as opposed to the user's own. */
import { existsSync, readdirSync } from "node:fs";
import { dirname, join, sep } from "node:path";
import { fileURLToPath } from "node:url";
import { installedPython, verlEnvironment } from "../../python/find.ts";

/** The folder `config` at the root of the package, three folders above this file in the source and in the build. */
export const shippedFolder = fileURLToPath(new URL("../../../config", import.meta.url));

export const verlPackage = "verl.trainer.config";

/** The folder of verl's configuration in the environment of the verl backend; undefined if it is not installed. */
export function installedVerl(): string | undefined {
  const python = process.env.HONE_VERL_PYTHON || installedPython(verlEnvironment());
  if (python === undefined) return undefined;
  const libraries = join(dirname(dirname(python)), "lib");
  if (!existsSync(libraries)) return undefined;
  return readdirSync(libraries)
    .map((version) => join(libraries, version, "site-packages", "verl", "trainer", "config"))
    .find((folder) => existsSync(folder));
}

export function isShipped(file: string): boolean {
  return file.startsWith(shippedFolder + sep) || /[\\/]verl[\\/]trainer[\\/]config[\\/]/.test(file);
}
