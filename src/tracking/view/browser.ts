/** Steps, their episodes, one episode: three screens and the keys that lead from one to the other. Pure. */

import { own } from "../../own.ts";
import type { EpisodeFile, KeptEpisode, Pieces } from "./kept-episodes.ts";
import { type Row, span } from "./styled.ts";
import { episodeHead, episodeRow, fileRow, type RunFigures } from "./tables.ts";
import { type Colouring, colourings, legend, transcript } from "./transcript.ts";

export interface BrowserContent {
  head: (width: number) => Row[];
  files: readonly EpisodeFile[];
  figures: RunFigures;
  episodes: (file: EpisodeFile) => readonly KeptEpisode[];
  pieces: Pieces | undefined;
}

export interface BrowserState {
  screen: "steps" | "episodes" | "episode";
  /** Index of the chosen file and of the chosen episode. */
  file: number;
  episode: number;
  /** Rows scrolled away in an episode. */
  scroll: number;
  colouring: Colouring;
}

export interface Size {
  columns: number;
  rows: number;
}

export function openState(content: BrowserContent): BrowserState {
  const last = Math.max(0, content.files.length - 1);
  return { screen: "steps", file: last, episode: 0, scroll: 0, colouring: "advantage" };
}

/** @returns the state after a key; undefined: the person is done */
export function press(state: BrowserState, key: string, content: BrowserContent, size: Size): BrowserState | undefined {
  const page = Math.max(1, size.rows - 4);
  const moves: Record<string, number> = { up: -1, k: -1, down: 1, j: 1, pageup: -page, pagedown: page, space: page };
  moves.home = -1e9;
  moves.end = 1e9;
  const move = own(moves, key);
  if (key === "q") return undefined;
  if (key === "c") {
    const next = (colourings.indexOf(state.colouring) + 1) % colourings.length;
    return { ...state, colouring: colourings[next]! };
  }
  if (["escape", "left", "backspace", "h"].includes(key)) {
    if (state.screen === "steps") return key === "escape" ? undefined : state;
    return { ...state, screen: state.screen === "episode" ? "episodes" : "steps", scroll: 0 };
  }
  if (["return", "enter", "right", "l"].includes(key)) {
    if (state.screen === "steps" && content.files.length > 0) return { ...state, screen: "episodes", episode: 0 };
    if (state.screen === "episodes" && episodesOf(state, content).length > 0) {
      return { ...state, screen: "episode", scroll: 0 };
    }
    return state;
  }
  const sideways = key === "n" ? 1 : key === "p" ? -1 : 0;
  if (sideways !== 0 && state.screen === "episode") {
    return { ...state, episode: within(state.episode + sideways, episodesOf(state, content).length), scroll: 0 };
  }
  if (move === undefined) return state;
  if (state.screen === "steps") return { ...state, file: within(state.file + move, content.files.length) };
  if (state.screen === "episodes") {
    return { ...state, episode: within(state.episode + move, episodesOf(state, content).length) };
  }
  const rows = episodeRows(state, content, size).length;
  return { ...state, scroll: within(state.scroll + move, Math.max(1, rows - page + 1)) };
}

/** Exactly the rows that fit. */
export function draw(state: BrowserState, content: BrowserContent, size: Size): Row[] {
  const room = Math.max(1, size.rows - 2);
  const [body, keys] = screen(state, content, size, room);
  const rows = body.slice(0, room).map((row) => cut(row, size.columns));
  while (rows.length < room) rows.push([]);
  return [...rows, cut(keys, size.columns)];
}

function screen(state: BrowserState, content: BrowserContent, size: Size, room: number): [Row[], Row] {
  if (state.screen === "steps") {
    const head = content.head(size.columns);
    const list = content.files.map((file) => fileRow(file, content.figures));
    const empty: Row[] = list.length === 0 ? [[span("no episodes have been kept yet", "2")]] : [];
    return [
      [...head, ...chosen(list, state.file, room - head.length), ...empty],
      keys("up/down  enter: episodes  q: end"),
    ];
  }
  if (state.screen === "episodes") {
    const { step, kind } = content.files[state.file]!;
    const title: Row = [span(`step ${step}, ${kind}`, "1")];
    const list = episodesOf(state, content).map(episodeRow);
    return [
      [title, episodeHead, ...chosen(list, state.episode, room - 2)],
      keys("up/down  enter: read  left: steps  q: end"),
    ];
  }
  const rows = episodeRows(state, content, size);
  const shown = rows.slice(state.scroll, state.scroll + room - 1);
  while (shown.length < room - 1) shown.push([]);
  return [
    [...shown, legend(state.colouring)],
    keys("up/down/space  n/p: next, previous  c: colour by advantage, logprob, mask  left: back  q: end"),
  ];
}

const keys = (text: string): Row => [span(text, "2")];

function episodesOf(state: BrowserState, content: BrowserContent): readonly KeptEpisode[] {
  const file = content.files[state.file];
  return file === undefined ? [] : content.episodes(file);
}

function episodeRows(state: BrowserState, content: BrowserContent, { columns }: Size): Row[] {
  const episode = episodesOf(state, content)[state.episode];
  const { colouring } = state;
  return episode === undefined ? [] : transcript(episode, { colouring, width: columns, pieces: content.pieces });
}

/** As much of a list as fits, with its chosen row marked and in view. */
function chosen(list: readonly Row[], index: number, room: number): Row[] {
  const height = Math.max(1, room);
  const from = within(index - Math.floor(height / 2), Math.max(1, list.length - height + 1));
  return list.slice(from, from + height).map((row, at) => [span(from + at === index ? "> " : "  ", "1"), ...row]);
}

function cut(row: Row, columns: number): Row {
  let left = columns;
  return row.flatMap(({ text, style }) => {
    const kept = text.slice(0, Math.max(0, left));
    left -= kept.length;
    return kept === "" ? [] : [span(kept, style)];
  });
}

function within(value: number, count: number): number {
  return Math.min(Math.max(0, value), Math.max(0, count - 1));
}
