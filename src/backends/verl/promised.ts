/** The values that verl's workers must hold by the table of keys with two names, and what they hold instead. */
import { isDeepStrictEqual } from "node:util";
import { verlOwnKeys, verlSharedKeys } from "../../config/compose/sync/shared-keys.ts";
import { layerOf } from "../../config/tree/origin.ts";
import { valueAt } from "../../config/tree/value-at.ts";
import type { ComposedTree } from "../descriptor.ts";
import type { Finding } from "../engine.ts";

const actor = "actor_rollout_ref.actor";
const algorithm = "rllm.algorithm";

/** By verl's name, the value of the other name: the rows of the table, and its rules for the clip range, KL and schedule. */
export function promisedValues({ tree, origins }: ComposedTree): ReadonlyMap<string, unknown> {
  const at = (path: string) => valueAt(tree, path) ?? null;
  const [clip, kl, steps] = [at(`${algorithm}.eps_clip`), at(`${algorithm}.kl_beta`), at("rllm.trainer.total_batches")];
  const useKl = origins.get(`${actor}.use_kl_loss`);
  const isKlGiven = useKl !== undefined && useKl.kind !== "synced" && layerOf(useKl) > 0;
  const rules: [string, unknown][] = [
    [`${actor}.clip_ratio`, clip],
    [`${actor}.clip_ratio_low`, clip],
    [`${actor}.clip_ratio_high`, at(`${algorithm}.eps_clip_high`) ?? clip],
    [`${actor}.optim.lr_scheduler_type`, at(`${algorithm}.lr_schedule`)],
    [`${actor}.use_kl_loss`, isKlGiven ? null : Number(kl) > 0],
    ["trainer.total_training_steps", Number(steps) > 0 ? steps : null],
  ];
  // The driver gets the model's folder and not its name.
  const rows = [...verlSharedKeys, ...verlOwnKeys].filter(([, common]) => common !== "model.name");
  const promised = rows.map(([native, common]): [string, unknown] => [native, at(common)]);
  // With null, verl's own value stays; a row of another version of verl has no value at all.
  return new Map(
    [...promised, ...rules].filter(([path, value]) => value !== null && valueAt(tree, path) !== undefined),
  );
}

/** The values in the processes, by verl's name. */
export interface Held {
  values: Readonly<Record<string, unknown>>;
  missing: readonly string[];
  /** The process that holds each. */
  held: Readonly<Record<string, string>>;
}

export function compareHeld(promised: ReadonlyMap<string, unknown>, { values, missing, held }: Held): Finding {
  const different = [...promised].filter(
    ([path, value]) => !missing.includes(path) && !isDeepStrictEqual(values[path], value),
  );
  const name = "settings";
  if (different.length > 0) {
    const shown = different.map(
      ([path, value]) => `${path} is ${JSON.stringify(values[path])}, not ${JSON.stringify(value)}`,
    );
    return { name, detail: shown.join("; "), fix: "please report it with the command and the version of verl" };
  }
  const present = [...promised.keys()].filter((path) => !missing.includes(path));
  const inWorkers = present.filter((path) => held[path] === "worker").length;
  const absent = missing.length === 0 ? "" : `; this version of verl has no ${missing.join(", ")}`;
  return {
    name,
    detail: `${present.length} values with two names are the same in verl (${inWorkers} read from a worker)${absent}`,
  };
}
