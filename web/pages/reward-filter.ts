/** Filters of episodes by reward, as the bars of the histogram write them. */
import type { RewardBin } from "../../src/apps/view/queries/curves.ts";

/** E.g. `reward=1`, `reward>=0.2 and reward<0.4`. @param last whether it is the bin of the largest rewards */
export const clauseOf = ({ low, high }: Pick<RewardBin, "low" | "high">, last: boolean): string =>
  low === high ? `reward=${low}` : `reward>=${low} and reward<${last ? "=" : ""}${high}`;

export const unknownClause = "reward=unknown";

/** Adds a bar to the rest of a filter; "" for no bar. */
export const joinFilter = (clause: string, rest: string): string =>
  clause === "" || rest === "" ? clause + rest : `${clause} and (${rest})`;

/** The bar of a filter, and the rest, in which the bars are counted. */
export function splitFilter(filter: string): { clause: string; rest: string } {
  const number = String.raw`-?\d[\d.e+-]*`;
  const clause = `reward=(?:unknown|${number})|reward>=${number} and reward<=?${number}`;
  const found = new RegExp(`^(${clause})(?: and \\((.*)\\))?$`, "s").exec(filter);
  const [, bar = "", rest = ""] = found ?? [];
  return found === null || !isBalanced(rest) ? { clause: "", rest: filter } : { clause: bar, rest };
}

/** Whether each bracket outside of quotes is closed, and none before it was opened. */
function isBalanced(text: string): boolean {
  let open = 0;
  for (const bracket of text.replaceAll(/"(?:\\.|[^"\\])*"/g, "").match(/[()]/g) ?? []) {
    open += bracket === "(" ? 1 : -1;
    if (open < 0) return false;
  }
  return open === 0;
}
