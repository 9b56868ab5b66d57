/** Which endings of an episode exclude it from training. */
import { type TerminationReason, terminationReasons } from "./types.ts";

/** `rllm.compact_filtering`. */
export type CompactFiltering = { enable: boolean } & Readonly<Record<`mask_${TerminationReason}`, boolean>>;

/** Episodes that ended for these reasons are dropped before anything is compared. */
export function maskedReasons(filtering: CompactFiltering): ReadonlySet<TerminationReason> {
  if (!filtering.enable) return new Set();
  return new Set(terminationReasons.filter((reason) => filtering[`mask_${reason}`]));
}
