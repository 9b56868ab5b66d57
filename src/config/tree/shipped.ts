/** Identifies YAML files that ship with Hone or verl, as opposed to the user's own. */
import { existsSync, readdirSync } from "node:fs";
import { dirname, join, sep } from "node:path";
import { fileURLToPath } from "node:url";

/** The folder `config` at the root of the package, three folders above this file in the source and in the build. */
export const shippedFolder = fileURLToPath(new URL("../../../config", import.meta.url));

/** The folder of verl's configuration: that of `HONE_VERL_PYTHON`, or else a copy of the version that Hone installs. */
export function verlFolder(): string {
  const shipped = join(shippedFolder, "verl");
  const python = process.env.HONE_VERL_PYTHON;
  if (!python) return shipped;
  const libraries = join(dirname(dirname(python)), "lib");
  if (!existsSync(libraries)) return shipped;
  const folders = readdirSync(libraries).map((version) =>
    join(libraries, version, "site-packages", "verl", "trainer", "config"),
  );
  return folders.find((folder) => existsSync(folder)) ?? shipped;
}

export function isShipped(file: string): boolean {
  return file.startsWith(shippedFolder + sep) || /[\\/]verl[\\/]trainer[\\/]config[\\/]/.test(file);
}
