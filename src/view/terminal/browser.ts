/** Three screens (steps, episodes of a step, one episode) and the keys that lead from one to another. Pure functions. */
import { own } from "../../own.ts";
import type { Pieces } from "../../tracking/run-folder/pieces.ts";
import type { StoredEpisode } from "../../tracking/run-folder/read-episode.ts";
import type { EpisodeRow } from "../queries/episode-list.ts";
import { bold, dim, type Row, span } from "./styled.ts";
import { episodeHead, episodeRow, type StepFile } from "./tables.ts";
import { type Coloring, colorings, legend, transcript } from "./transcript.ts";

export interface BrowserContent {
  head: (width: number) => Row[];
  files: readonly StepFile[];
  fileRow: (file: StepFile) => Row;
  /** What its rollouts waited for; empty if the journal does not have it. */
  times: (file: StepFile) => Row[];
  /** In the order of the file. */
  episodes: (file: StepFile) => readonly EpisodeRow[];
  read: (row: EpisodeRow) => StoredEpisode;
  pieces: Pieces | undefined;
}

export interface BrowserState {
  screen: "steps" | "episodes" | "episode";
  /** Index of the selected file and of the selected episode. */
  file: number;
  episode: number;
  /** Rows of an episode above the top of the screen. */
  scroll: number;
  coloring: Coloring;
}

export interface Size {
  columns: number;
  rows: number;
}

export function openState(content: BrowserContent): BrowserState {
  const last = Math.max(0, content.files.length - 1);
  return { screen: "steps", file: last, episode: 0, scroll: 0, coloring: "advantage" };
}

const backKeys = ["escape", "left", "backspace", "h"];
const openKeys = ["return", "enter", "right", "l"];

/** @returns the state after a key; undefined: close the browser */
export function press(state: BrowserState, key: string, content: BrowserContent, size: Size): BrowserState | undefined {
  const { screen, file, episode, scroll } = state;
  const atStart = screen === "steps";
  if (key === "q" || (key === "escape" && atStart)) return undefined;
  if (key === "c") {
    const next = (colorings.indexOf(state.coloring) + 1) % colorings.length;
    return { ...state, coloring: colorings[next] ?? "advantage" };
  }
  const episodes = atStart ? [] : episodesOf(state, content);
  if (backKeys.includes(key)) {
    return atStart ? state : { ...state, screen: screen === "episode" ? "episodes" : "steps", scroll: 0 };
  }
  if (openKeys.includes(key)) {
    if (atStart && content.files.length > 0) return { ...state, screen: "episodes", episode: 0 };
    return screen === "episodes" && episodes.length > 0 ? { ...state, screen: "episode", scroll: 0 } : state;
  }
  const sideways = key === "n" ? 1 : key === "p" ? -1 : 0;
  if (sideways !== 0 && screen === "episode") {
    return { ...state, episode: within(episode + sideways, episodes.length), scroll: 0 };
  }
  const page = Math.max(1, size.rows - 4);
  const moves = { up: -1, k: -1, down: 1, j: 1, pageup: -page, pagedown: page, space: page, home: -1e9, end: 1e9 };
  const move = own<number>(moves, key);
  if (move === undefined) return state;
  if (atStart) return { ...state, file: within(file + move, content.files.length) };
  if (screen === "episodes") return { ...state, episode: within(episode + move, episodes.length) };
  const rows = episodeRows(state, content, size).length;
  return { ...state, scroll: within(scroll + move, Math.max(1, rows - page + 1)) };
}

/** As many rows as fit on the screen. */
export function draw(state: BrowserState, content: BrowserContent, size: Size): Row[] {
  const room = Math.max(1, size.rows - 2);
  const [body, keys] = screenRows(state, content, size, room);
  const rows = body.slice(0, room).map((row) => cut(row, size.columns));
  while (rows.length < room) rows.push([]);
  return [...rows, cut([span(keys, dim)], size.columns)];
}

function screenRows(state: BrowserState, content: BrowserContent, size: Size, room: number): [Row[], keys: string] {
  const file = content.files[state.file];
  if (state.screen === "steps" || file === undefined) {
    const head = content.head(size.columns);
    const list = selected(content.files.map(content.fileRow), state.file, room - head.length);
    if (list.length === 0) list.push([span("no episodes have been written so far", dim)]);
    return [[...head, ...list], "up/down  enter: episodes  q: quit"];
  }
  if (state.screen === "episodes") {
    const head = [[span(`step ${file.step}, ${file.kind}`, bold)], ...content.times(file), episodeHead];
    const list = selected(episodesOf(state, content).map(episodeRow), state.episode, room - head.length);
    return [[...head, ...list], "up/down  enter: read  left: steps  q: quit"];
  }
  const shown = episodeRows(state, content, size).slice(state.scroll, state.scroll + room - 1);
  while (shown.length < room - 1) shown.push([]);
  return [
    [...shown, legend(state.coloring)],
    "up/down/space  n/p: next, previous  c: color by advantage, logprob, mask  left: back  q: quit",
  ];
}

function episodesOf(state: BrowserState, content: BrowserContent): readonly EpisodeRow[] {
  const file = content.files[state.file];
  return file === undefined ? [] : content.episodes(file);
}

function episodeRows(state: BrowserState, content: BrowserContent, { columns }: Size): Row[] {
  const row = episodesOf(state, content)[state.episode];
  const { coloring } = state;
  return row === undefined ? [] : transcript(content.read(row), { coloring, width: columns, pieces: content.pieces });
}

/** The part of a list that fits, with the selected row marked and in view. */
function selected(list: readonly Row[], index: number, room: number): Row[] {
  const height = Math.max(1, room);
  const from = within(index - Math.floor(height / 2), Math.max(1, list.length - height + 1));
  return list.slice(from, from + height).map((row, at) => [span(from + at === index ? "> " : "  ", bold), ...row]);
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
