/** Which endings of an episode keep it out of training altogether. */
import { type TerminationReason, terminationReasons } from "./types.ts";

/** `rllm.compact_filtering`. */
export type CompactFiltering = { enable: boolean } & Readonly<Record<`mask_${TerminationReason}`, boolean>>;

/** The reasons whose episodes are left out before anything is compared. */
export function maskedReasons(filtering: CompactFiltering): ReadonlySet<TerminationReason> {
  if (!filtering.enable) return new Set();
  return new Set(terminationReasons.filter((reason) => filtering[`mask_${reason}`]));
}
