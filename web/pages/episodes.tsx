/** All episodes of a run: filtered, sorted, searched. */
import type { EpisodeList, SortColumn } from "../../src/view/api.ts";
import { Empty, Pending } from "../parts/basics.tsx";
import { EpisodeRow } from "../parts/episode-row.tsx";
import { FilterBox } from "../parts/filter-box.tsx";
import { VirtualList } from "../parts/virtual.tsx";
import { parameter, setParameters } from "../state/address.ts";
import { embedded } from "../state/embedded.ts";
import { answerAt, apiPath, useAnswer } from "../state/fetch.ts";
import { RewardBars } from "./reward-bars.tsx";
import { SearchResults } from "./search.tsx";

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
  const pagePath = (page: number) =>
    apiPath("/api/runs/:run/episodes", { ...query, offset: page === 0 ? "" : String(page * pageSize) });
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
            {(index) => <EpisodeAt run={run} path={pagePath(Math.floor(index / pageSize))} index={index} />}
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
  const filter = `step=${step} and kind=${parameter("kind") === "validation" ? "validation" : "train"}`;
  return (
    <button type="button" class="only-step" onClick={() => setParameters({ filter })}>
      Only step {step}
    </button>
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
function EpisodeAt({ run, path, index }: { run: string; path: string; index: number }) {
  const row = answerAt<EpisodeList>(path).data?.rows[index % pageSize];
  return row ? <EpisodeRow run={run} row={row} index={index} /> : <div class="list-row muted">…</div>;
}
