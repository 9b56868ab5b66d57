/** All episodes of a run: filtered, sorted, searched. */
import type { SortColumn } from "../../src/apps/view/queries/episodes.ts";
import type { Query } from "../../src/apps/view/routes.ts";
import { Empty, Pending } from "../parts/basics.tsx";
import { EpisodeRow } from "../parts/episode-row.tsx";
import { FilterBox } from "../parts/filter-box.tsx";
import { count, percent, short } from "../parts/numbers.ts";
import { oneLine } from "../parts/printable.ts";
import { VirtualList } from "../parts/virtual.tsx";
import { embedded, parameter, setParameters } from "../state/address.ts";
import { answerTo, useAnswer } from "../state/fetch.ts";
import { shownKind } from "../state/place.ts";
import { clauseOf, joinFilter, splitFilter, unknownClause } from "./reward-filter.ts";

const pageSize = 100;

const columns: readonly { sort: SortColumn; label: string; class?: string }[] = [
  { sort: "newest", label: "episode" },
  { sort: "reward", label: "reward" },
  { sort: "advantage", label: "advantage", class: "right" },
  { sort: "termination", label: "ended" },
  { sort: "turns", label: "turns", class: "right" },
  { sort: "tokens", label: "tokens", class: "right" },
  { sort: "seconds", label: "time", class: "right" },
];

export function Episodes({ run }: { run: string }) {
  const filter = parameter("filter");
  const sort = (parameter("sort") || "newest") as SortColumn;
  const order = parameter("order") === "asc" ? "asc" : "desc";
  const query = { run, filter, sort, order, limit: String(pageSize) } as const;
  const { data, error, stale } = useAnswer("/api/runs/:run/episodes", query);
  const words = parameter("q");
  return (
    <>
      <div class="head">
        <h1>Episodes</h1>
        {data && words === "" && (
          <span class="muted" role="status">
            {data.total.toLocaleString("en")}
          </span>
        )}
      </div>
      <FilterBox error={error} />
      {filter === "" && !embedded && <OnlyStep />}
      {words === "" && !error && !embedded && <RewardBars run={run} filter={filter} />}
      {!embedded && <SearchWords words={words} />}
      {words !== "" && <SearchResults run={run} words={words} filter={filter} />}
      {words === "" && !data && !error && <Pending error={undefined} />}
      {words === "" && data?.total === 0 && (
        <Empty>{filter === "" ? "No episodes are stored so far." : "No episode matches."}</Empty>
      )}
      {words === "" && data && data.total > 0 && (
        // biome-ignore lint/a11y/useSemanticElements: a virtual list cannot be a table
        <div class={stale ? "list stale" : "list"} role="table" aria-label="episodes" aria-rowcount={data.total + 1}>
          <ListHead sort={sort} order={order} />
          <VirtualList count={data.total} estimate={() => 58} role="rowgroup">
            {(index) => <EpisodeAt query={query} index={index} />}
          </VirtualList>
        </div>
      )}
    </>
  );
}

/** The step that the other tabs show. */
function OnlyStep() {
  const step = parameter("step");
  if (!/^\d+$/.test(step)) return null;
  const filter = `step=${step} and kind=${shownKind()}`;
  return (
    <button type="button" class="only-step" onClick={() => setParameters({ filter })}>
      Only step {step}
    </button>
  );
}

/** How many episodes have which reward. A click on a bar shows only these. */
function RewardBars({ run, filter }: { run: string; filter: string }) {
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
  const max = Math.max(1, ...bars.map(({ count }) => count));
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
            <i style={{ blockSize: `${(bar.count / max) * 48}px` }} />
            <small>{bar.foot}</small>
          </button>
        );
      })}
    </fieldset>
  );
}

const SearchWords = ({ words }: { words: string }) => (
  <label class="field">
    Full text
    <input
      class="words"
      type="text"
      value={words}
      placeholder='words, or "a phrase"'
      onInput={(event) => setParameters({ q: event.currentTarget.value })}
    />
  </label>
);

/** Episodes whose text contains some words. */
function SearchResults({ run, words, filter }: { run: string; words: string; filter: string }) {
  const { data, error, stale } = useAnswer("/api/runs/:run/search", { run, q: words, filter, limit: "200" });
  if (!data) return <Pending error={error} />;
  if (data.total === 0) return <Empty>No episode contains this.</Empty>;
  return (
    <>
      <p class="muted" role="status">
        {count(data.total, "episode")}
        {data.hits.length < data.total && `, the first ${data.hits.length} are shown`}
      </p>
      {/* biome-ignore lint/a11y/useSemanticElements: its rows are those of a virtual list */}
      <div class={stale ? "list stale" : "list"} role="table" aria-label="found episodes">
        {data.hits.map(({ episode, snippet, match }, index) => (
          <EpisodeRow
            key={episode.key}
            run={run}
            row={episode}
            index={index}
            find={match ? snippet.slice(...match) : undefined}
            preview={<Snippet text={snippet} match={match} />}
          />
        ))}
      </div>
    </>
  );
}

function Snippet({ text, match }: { text: string; match: [number, number] | null }) {
  if (match === null) return <>{oneLine(text)}</>;
  const [from, to] = match;
  return (
    <>
      {oneLine(text.slice(0, from))}
      <mark>{oneLine(text.slice(from, to))}</mark>
      {oneLine(text.slice(to))}
    </>
  );
}

function ListHead({ sort, order }: { sort: SortColumn; order: "asc" | "desc" }) {
  const flip = (column: SortColumn) =>
    setParameters({ sort: column, order: column === sort && order === "desc" ? "asc" : "desc" });
  return (
    // biome-ignore lint/a11y/useSemanticElements: a virtual list cannot be a table
    // biome-ignore lint/a11y/useFocusableInteractive: its buttons can be focused
    <div class="list-row list-head" role="row">
      {columns.map((column) => (
        // biome-ignore lint/a11y/useSemanticElements: a virtual list cannot be a table
        // biome-ignore lint/a11y/useFocusableInteractive: its button can be focused
        <span
          key={column.sort}
          role="columnheader"
          class={column.class}
          aria-sort={column.sort === sort ? (order === "asc" ? "ascending" : "descending") : "none"}
        >
          <button type="button" class="link" disabled={embedded !== undefined} onClick={() => flip(column.sort)}>
            {column.label}
            {column.sort === sort && (order === "asc" ? " ↑" : " ↓")}
          </button>
        </span>
      ))}
    </div>
  );
}

/** Pages are fetched when they are scrolled to. */
function EpisodeAt({ query, index }: { query: Query<"/api/runs/:run/episodes">; index: number }) {
  const page = Math.floor(index / pageSize);
  const offset = page === 0 ? "" : String(page * pageSize);
  const row = answerTo("/api/runs/:run/episodes", { ...query, offset }).data?.rows[index % pageSize];
  return row ? <EpisodeRow run={query.run} row={row} index={index} /> : <div class="list-row muted">…</div>;
}
