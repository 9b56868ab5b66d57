/** How many episodes have which reward. A click on a bar shows only these. */
import { percent, short } from "../parts/numbers.ts";
import { setParameters } from "../state/address.ts";
import { useAnswer } from "../state/fetch.ts";
import { clauseOf, joinFilter, splitFilter, unknownClause } from "./reward-filter.ts";

export function RewardBars({ run, filter }: { run: string; filter: string }) {
  const { clause, rest } = splitFilter(filter);
  const { data, stale } = useAnswer("/api/runs/:run/rewards", { run, filter: rest });
  if (!data) return null;
  const { bins, unknown } = data;
  const bars = bins.map((bin, index) => ({
    clause: clauseOf(bin, index === bins.length - 1),
    label: bin.low === bin.high ? short(bin.low) : `${short(bin.low)} to ${short(bin.high)}`,
    // The axis has one number per edge.
    foot: short(bin.low),
    count: bin.count,
  }));
  if (unknown > 0) bars.push({ clause: unknownClause, label: "unknown", foot: "?", count: unknown });
  const most = Math.max(1, ...bars.map(({ count }) => count));
  const all = bars.reduce((sum, { count }) => sum + count, 0);
  return (
    <fieldset class={stale ? "reward-bars stale" : "reward-bars"}>
      <legend class="hidden">episodes by reward</legend>
      {bars.map((bar) => {
        const text = `reward ${bar.label}: ${bar.count.toLocaleString("en")} episodes (${percent(bar.count / Math.max(1, all))})`;
        const pressed = bar.clause === clause;
        return (
          <button
            key={bar.clause}
            type="button"
            aria-pressed={pressed}
            aria-label={text}
            title={text}
            disabled={bar.count === 0}
            onClick={() => setParameters({ filter: joinFilter(pressed ? "" : bar.clause, rest) })}
          >
            <span>{short(bar.count)}</span>
            <i style={{ blockSize: `${(bar.count / most) * 48}px` }} />
            <small>{bar.foot}</small>
          </button>
        );
      })}
    </fieldset>
  );
}
