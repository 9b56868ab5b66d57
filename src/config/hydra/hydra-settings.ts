/** The `hydra` section: reads the settings that Hone supports and rejects all others. */
import { nearest } from "../../nearest.ts";
import { type MapNode, type Mistake, type Node, nodeAt, plain, type ValueNode } from "../tree/node.ts";
import { oneLine } from "../tree/origin.ts";
import { positionText } from "../yaml/read-yaml.ts";

export interface HydraSettings {
  /** `hydra.mode=MULTIRUN` is `--multirun`. */
  multirun: boolean;
  /** `hydra.run.dir`: the run's folder. */
  runDir: ValueNode | undefined;
  /** `hydra.sweep.dir`: the folder of a multirun's folders. */
  sweepDir: ValueNode | undefined;
}

const meaningful = ["hydra.searchpath", "hydra.mode", "hydra.run.dir", "hydra.sweep.dir"];

/** Settings that are accepted only with the value that matches Hone's behavior. */
const unchanged: ReadonlyMap<string, { value: unknown; does: string }> = new Map([
  ["hydra.job.chdir", { value: false, does: "Hone never changes the working folder" }],
  [
    "hydra.output_subdir",
    { value: null, does: "Hone writes no .hydra folder; a run's folder holds its configuration" },
  ],
]);

/** @param section resolved */
export function readHydraSettings(section: MapNode | undefined, mistakes: Mistake[]): HydraSettings {
  const text = (key: string): ValueNode | undefined => {
    const node = section && nodeAt(section, key.split("."));
    if (node === undefined || (node.kind === "value" && node.value === null)) return undefined;
    if (node.kind === "value" && typeof node.value === "string") return node;
    mistakes.push({ where: positionText(node.origin), message: `hydra.${key} takes text` });
    return undefined;
  };
  if (section !== undefined) checkKeys(section, "hydra", mistakes);
  const mode = text("mode");
  if (mode !== undefined && mode.value !== "RUN" && mode.value !== "MULTIRUN") {
    const message = `hydra.mode takes RUN or MULTIRUN, not ${oneLine(String(mode.value))}`;
    mistakes.push({ where: positionText(mode.origin), message });
  }
  return { multirun: mode?.value === "MULTIRUN", runDir: text("run.dir"), sweepDir: text("sweep.dir") };
}

function checkKeys(node: Node, key: string, mistakes: Mistake[]): void {
  if (meaningful.includes(key)) return;
  if (node.kind === "map" && [...meaningful, ...unchanged.keys()].some((known) => known.startsWith(`${key}.`))) {
    for (const { name, node: child } of node.entries) checkKeys(child, `${key}.${name}`, mistakes);
    return;
  }
  const where = positionText(node.origin);
  const same = unchanged.get(key);
  if (same === undefined) mistakes.push({ where, message: `${oneLine(key)} ${hasNoMeaning(key)}` });
  else if (JSON.stringify(plain(node)) !== JSON.stringify(same.value)) {
    mistakes.push({ where, message: `${key} can only be ${String(same.value)}: ${same.does}` });
  }
}

/** Why one of Hydra's own settings or groups is rejected. */
export function hasNoMeaning(key: string): string {
  const known = [...meaningful, ...unchanged.keys()];
  const near = nearest(key, known);
  const help = near.length > 0 ? `did you mean ${near.join(" or ")}?` : `Hone supports ${known.join(", ")}`;
  return `is a setting of Hydra's own machinery, which Hone does not have; ${help}`;
}
