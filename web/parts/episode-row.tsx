/** An episode in a list. */
import type { ComponentChildren } from "preact";
import type { EpisodeRow as Row } from "../../src/view/api.ts";
import { address, href } from "../state/address.ts";
import { Advantage, Reward } from "./basics.tsx";
import { duration, short } from "./numbers.ts";
import { oneLine } from "./printable.ts";

export function EpisodeRow({
  run,
  row,
  index,
  find,
  preview = oneLine(row.preview),
}: {
  run: string;
  row: Row;
  index: number;
  /** The text that the episode's view searches for and marks. */
  find?: string | undefined;
  preview?: ComponentChildren;
}) {
  return (
    // biome-ignore lint/a11y/useSemanticElements: a virtual list cannot be a table
    // biome-ignore lint/a11y/useFocusableInteractive: its link can be focused
    <div class="list-row" role="row" aria-rowindex={index + 2}>
      <EpisodeName run={run} row={row} find={find} />
      <Cell>
        <Reward value={row.reward} />
      </Cell>
      <Cell class="right">
        <Advantage value={row.advantage} />
      </Cell>
      <Cell class={row.failure ? "failed" : undefined}>
        {oneLine(row.failure ? `${row.failure.boundary} failed` : row.termination.replaceAll("_", " "))}
      </Cell>
      <Cell class="right">{row.turns}</Cell>
      <Cell class="right">{short(row.tokens)}</Cell>
      <Cell class="right">{duration(row.seconds * 1000)}</Cell>
      <Cell class="preview">{preview}</Cell>
    </div>
  );
}

interface EpisodeNameProps {
  run: string;
  row: Row;
  find: string | undefined;
}

const EpisodeName = ({ run, row: { key, id, step, kind }, find }: EpisodeNameProps) => (
  <Cell>
    <a href={href(address(["runs", run, "episodes", key], { find }))} data-row>
      {oneLine(id)}
    </a>
    <small class="muted">
      {kind === "train" ? "step" : "validation after"} {step}
    </small>
  </Cell>
);

const Cell = (props: { class?: string | undefined; children: ComponentChildren }) => (
  // biome-ignore lint/a11y/useSemanticElements: a virtual list cannot be a table
  <span role="cell" class={props.class} dir={props.class === "preview" ? "auto" : undefined}>
    {props.children}
  </span>
);
