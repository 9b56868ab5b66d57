/** Keys with two names: the values that verl's workers must have, compared with the values that they have. */
import { isDeepStrictEqual } from "node:util";
import { currentVerlNames, olderVerlNames } from "../../config/compose/sync/verl-keys.ts";
import { layerOf } from "../../config/tree/origin.ts";
import { valueAt } from "../../config/tree/value-at.ts";
import type { ComposedTree } from "../descriptor.ts";
import type { Finding } from "../engine.ts";

const actor = "actor_rollout_ref.actor";
const algorithm = "rllm.algorithm";

/** The value of each key under its other name, by verl's name. Includes the rules for the clip range and KL. */
export function expectedValues({ tree, origins }: ComposedTree): ReadonlyMap<string, unknown> {
  const at = (path: string) => valueAt(tree, path) ?? null;
  const [clip, kl, steps] = [at(`${algorithm}.eps_clip`), at(`${algorithm}.kl_beta`), at("rllm.trainer.total_batches")];
  const useKl = origins.get(`${actor}.use_kl_loss`);
  const isKlGiven = useKl !== undefined && useKl.kind !== "synced" && layerOf(useKl) > 0;
  const rules: [string, unknown][] = [
    [`${actor}.clip_ratio`, clip],
    [`${actor}.clip_ratio_low`, clip],
    [`${actor}.clip_ratio_high`, at(`${algorithm}.eps_clip_high`) ?? clip],
    [`${actor}.use_kl_loss`, isKlGiven ? null : Number(kl) > 0],
    ["trainer.total_training_steps", Number(steps) > 0 ? steps : null],
  ];
  // The driver gets the model's folder instead of its name.
  const rows = [...olderVerlNames, ...currentVerlNames].filter(([, common]) => common !== "model.name");
  const values = rows.map(([native, common]): [string, unknown] => [native, at(common)]);
  // With null, verl uses its own value. Keys that this version of verl does not have are not in the tree.
  return new Map([...values, ...rules].filter(([path, value]) => value !== null && valueAt(tree, path) !== undefined));
}

/** The values in verl's processes, by verl's name. */
export interface WorkerValues {
  values: Readonly<Record<string, unknown>>;
  missing: readonly string[];
  /** The process that each value was read from. */
  held: Readonly<Record<string, string>>;
}

export function compareValues(
  expected: ReadonlyMap<string, unknown>,
  { values, missing, held }: WorkerValues,
): Finding {
  const different = [...expected].filter(
    ([path, value]) => !missing.includes(path) && !isDeepStrictEqual(values[path], value),
  );
  const name = "settings";
  if (different.length > 0) {
    const shown = different.map(
      ([path, value]) => `${path} is ${JSON.stringify(values[path])}, not ${JSON.stringify(value)}`,
    );
    return { name, detail: shown.join("; "), fix: "please report it with the command and the version of verl" };
  }
  const present = [...expected.keys()].filter((path) => !missing.includes(path));
  const inWorkers = present.filter((path) => held[path] === "worker").length;
  const absent = missing.length === 0 ? "" : `; this version of verl has no ${missing.join(", ")}`;
  return {
    name,
    detail: `${present.length} values with two names are the same in verl (${inWorkers} read from a worker)${absent}`,
  };
}
