/** The field that finds words in the episode, and marks them. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { parameter, setParameters } from "../state/address.ts";
import type { Block } from "./blocks.ts";
import { type Match, matchesOf, patternOf, rangesIn } from "./find.ts";

interface Find {
  words: string;
  matches: readonly Match[];
  current: number;
  /** The block of the current match; undefined: nothing is searched or found. */
  block: number | undefined;
  move: (by: 1 | -1) => void;
}

export function useFind(blocks: readonly Block[]): Find {
  const words = parameter("find");
  const pattern = useMemo(() => patternOf(words), [words]);
  const matches = useMemo(() => (pattern ? matchesOf(blocks, pattern) : []), [blocks, pattern]);
  const [chosen, choose] = useState(0);
  useEffect(() => choose(0), [words]);
  const current = Math.min(chosen, Math.max(0, matches.length - 1));
  const match = matches[current];
  useEffect(() => (pattern ? mark(pattern, match) : undefined), [pattern, match]);
  return {
    words,
    matches,
    current,
    block: match?.block,
    move: (by) => choose((current + by + matches.length) % Math.max(1, matches.length)),
  };
}

/** Marks what is in the document, now and when the list scrolls. Browsers without highlights only scroll. */
function mark(pattern: RegExp, match: Match | undefined): () => void {
  const list = document.querySelector(".transcript");
  if (!list || typeof Highlight === "undefined") return () => {};
  let shown = false;
  const update = () => {
    const found = new Highlight();
    const current = new Highlight();
    for (const element of list.querySelectorAll<HTMLElement>(":scope > [data-index]")) {
      for (const [nth, range] of rangesIn(element, pattern).entries()) {
        const isCurrent = Number(element.dataset.index) === match?.block && nth === match.nth;
        (isCurrent ? current : found).add(range);
        if (!isCurrent || shown) continue;
        shown = true;
        range.startContainer.parentElement?.scrollIntoView({ block: "center" });
      }
    }
    CSS.highlights.set("found", found);
    CSS.highlights.set("found-current", current);
  };
  update();
  const observer = new MutationObserver(update);
  observer.observe(list, { childList: true, subtree: true, characterData: true });
  return () => {
    observer.disconnect();
    CSS.highlights.clear();
  };
}

export function FindBox({ words, matches, current, move }: Find) {
  return (
    <search class="find">
      <input
        type="search"
        placeholder="find in this episode"
        aria-label="find in this episode"
        value={words}
        onInput={(event) => setParameters({ find: event.currentTarget.value })}
        onKeyDown={(event) => {
          if (event.key !== "Enter" || matches.length === 0) return;
          event.preventDefault();
          move(event.shiftKey ? -1 : 1);
        }}
      />
      {words !== "" && (
        <>
          <button type="button" disabled={matches.length < 2} onClick={() => move(-1)} aria-label="previous match">
            ‹
          </button>
          <button type="button" disabled={matches.length < 2} onClick={() => move(1)} aria-label="next match">
            ›
          </button>
          <output class="muted">
            {matches.length === 0 ? "not found" : `${current + 1} of ${matches.length.toLocaleString("en")}`}
          </output>
        </>
      )}
    </search>
  );
}
