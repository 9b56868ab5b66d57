/** Episodes whose text contains some words. */
import { Empty, Pending } from "../parts/basics.tsx";
import { EpisodeRow } from "../parts/episode-row.tsx";
import { count } from "../parts/numbers.ts";
import { oneLine } from "../parts/printable.ts";
import { useAnswer } from "../state/fetch.ts";

export function SearchResults({ run, words, filter }: { run: string; words: string; filter: string }) {
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
