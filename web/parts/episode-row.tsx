/** An episode in a list. */
import type { ComponentChildren } from "preact";
import type { EpisodeRow as Row, TrajectoryRow } from "../../src/apps/view/queries/episodes.ts";
import { href } from "../state/address.ts";
import { episodeAddress } from "../state/place.ts";
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
  /** Its place in the list. */
  index: number;
  /** The text that the episode's view searches for and marks. */
  find?: string | undefined;
  preview?: ComponentChildren;
}) {
  // Those that the filter found; their rewards differ.
  const [shown = 0, ...others] = row.matched ?? [];
  const trajectory = row.trajectories[shown];
  const { reward, advantage } = trajectory ?? row;
  const named = row.trajectories.length > 1 && trajectory ? nameOf(trajectory) : "";
  return (
    // biome-ignore lint/a11y/useSemanticElements: a virtual list cannot be a table
    // biome-ignore lint/a11y/useFocusableInteractive: its link can be focused
    <div class="list-row" role="row" aria-rowindex={index + 2}>
      <EpisodeName
        to={episodeAddress(run, row.key, index, find)}
        row={row}
        trajectory={`${named}${others.length > 0 ? ` and ${others.length} more` : ""}`}
      />
      <Cell>
        <Reward value={reward} />
      </Cell>
      <Cell class="right">
        <Advantage value={advantage} />
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

const nameOf = ({ role, instance }: TrajectoryRow) => (instance === undefined ? role : `${role} ${instance}`);

interface EpisodeNameProps {
  to: string;
  row: Row;
  /** Whose reward is shown; "" if there is only one. */
  trajectory: string;
}

const EpisodeName = ({ to, row: { id, step, kind }, trajectory }: EpisodeNameProps) => (
  <Cell>
    <a href={href(to)} data-row>
      {oneLine(id)}
    </a>
    <small class="muted">
      {kind === "train" ? "step" : "validation after"} {step}
      {trajectory !== "" && `, ${oneLine(trajectory)}`}
    </small>
  </Cell>
);

const Cell = (props: { class?: string | undefined; children: ComponentChildren }) => (
  // biome-ignore lint/a11y/useSemanticElements: a virtual list cannot be a table
  <span role="cell" class={props.class} dir={props.class === "preview" ? "auto" : undefined}>
    {props.children}
  </span>
);
