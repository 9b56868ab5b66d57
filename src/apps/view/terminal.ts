/**
 * A run in the terminal, as rows of styled text: its head and steps, the episodes of a step, and one episode with every sampled token
 * colored. Nothing here reads keys: the page (server.ts) is where one browses.
 */
import { dotted, printable } from "../../base/text.ts";
import { mean, ownValue } from "../../base/values.ts";
import { type ChatMessage, describeContent, type ToolDefinition } from "../../chat/messages.ts";
import { chart } from "../../tracking/console-lines.ts";
import { type StoredEpisode, type StoredTrajectory, tokenAdvantages } from "../../tracking/episodes.ts";
import { filterCondition } from "../../tracking/filter.ts";
import { openPieces, type Pieces, toJson } from "../../tracking/json-lines.ts";
import type { Step } from "../../trajectories/types.ts";
import { defaultCache, type IndexDatabase } from "./database.ts";
import { describeProblems, readProblems } from "./index-episodes.ts";
import { type Anatomy, anatomy, windowOf } from "./queries/anatomy.ts";
import { curves, oneCurve } from "./queries/curves.ts";
import { readOne } from "./queries/episode.ts";
import { type EpisodeRow, rowsWhere, whereOf } from "./queries/episodes.ts";
import { openRunIndex, readJournalState } from "./run-index.ts";

// Styled text, and breaking it into rows of a terminal.

/** `style` is a code of ANSI's select graphic rendition, e.g. `"1"` bold, `"38;5;208"` a color; "" changes nothing. */
export interface Span {
  text: string;
  style: string;
}

export type Row = readonly Span[];

const dim = "2";
const bold = "1";

export const span = (text: string, style = ""): Span => ({ text, style });

/** The text for a terminal, with or without colors. Control characters become dots. */
export function rowText(row: Row, colors: boolean): string {
  const styled = (text: string, style: string) => (colors && style !== "" ? `\x1b[${style}m${text}\x1b[0m` : text);
  return row.map(({ text, style }) => styled(dotted(text), style)).join("");
}

/** Breaks text at line ends and after `width` columns. */
export function wrap(spans: Row, width: number): Row[] {
  let row: Span[] = [];
  const rows = [row];
  let used = 0;
  const breakRow = () => {
    row = [];
    rows.push(row);
    used = 0;
  };
  for (const { text, style } of spans) {
    for (const character of text) {
      if (character === "\n") {
        breakRow();
        continue;
      }
      const shown = character === "\t" ? "  " : dotted(character);
      const columns = shown === character ? columnsOf(character) : shown.length;
      if (used + columns > width && used > 0) breakRow();
      const last = row.at(-1);
      if (last?.style === style) last.text += shown;
      else row.push({ text: shown, style });
      used += columns;
    }
  }
  return rows;
}

/** East Asian letters and most pictures are two columns wide. */
const wide = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\u{1f300}-\u{10ffff}]/u;

const columnsOf = (character: string) => (wide.test(character) ? 2 : 1);

// A run, its steps and the episodes of a step, one row each.

/** The episodes of a training step, or of the validation after it. */
export interface StepFile {
  step: number;
  kind: "train" | "validation";
}

/** What of the run cannot be read, a chart of the reward over the steps, and the last validation. */
function runHead(database: IndexDatabase, name: string, width: number): Row[] {
  const problem = describeProblems(readProblems(database));
  const curve = oneCurve(database, "reward/mean");
  const steps = curves(database, { names: "" }).steps;
  // A run of `hone score` has no steps but a report.
  const report = readJournalState(database).end?.report ?? [];
  const byStep = new Map(curve.map(({ step, value }) => [step, Number(value)]));
  const rewards = steps.map((step) => byStep.get(step) ?? Number.NaN);
  const rows: Row[] = [[span(`${name}: ${steps.length} steps`, bold)]];
  if (problem !== undefined) rows.push(...wrap([span(problem, "33")], width));
  if (rewards.some(Number.isFinite)) {
    const lines = chart(rewards, { width, height: 8, first: steps[0] ?? 1 });
    rows.push([span("mean reward of each step", dim)], ...lines.map((text) => [span(text)]));
  } else if (report.length > 0) {
    rows.push(...report.flatMap((line) => (line === "" ? [[]] : wrap([span(printable(line))], width))));
  } else {
    rows.push([span("no step has finished so far", dim)]);
  }
  const validation = curves(database, { kind: "validation" });
  const values = Object.entries(validation.columns)
    .filter(([key, column]) => key.startsWith("val/") && key.split("/").length > 2 && column.at(-1) !== null)
    .map(([key, column]) => `${key.slice("val/".length)} ${round(Number(column.at(-1)))}`);
  if (values.length > 0) rows.push([span(`validation after step ${validation.steps.at(-1)}: ${values.join(", ")}`)]);
  return [...rows, []];
}

/** The metrics shown of each file, by the name that they are shown under. */
const shownMetrics = {
  train: { reward: "reward/mean", gradient: "actor/grad_norm", tokens: "perf/sampled_tokens" },
  validation: { reward: "val/reward" },
};

/** Makes the row of each training step and validation. */
function fileRows(database: IndexDatabase): (file: StepFile) => Row {
  const valuesOf = (kind: StepFile["kind"]) =>
    Object.entries(shownMetrics[kind]).map(([label, name]) => {
      return { label, byStep: new Map(oneCurve(database, name, kind).map(({ step, value }) => [step, Number(value)])) };
    });
  const known = { train: valuesOf("train"), validation: valuesOf("validation") };
  return ({ step, kind }) => {
    const shown = known[kind].flatMap(({ label, byStep }) => {
      const value = byStep.get(step);
      return value === undefined ? [] : [`${label} ${round(value)}`];
    });
    return [span(`step ${String(step).padStart(4)}  ${kind.padEnd(10)}  ${shown.join("   ")}`)];
  };
}

/** What the rollouts of a step waited for, and the slowest of them. */
function timeRows({ totals, slowest, rollouts }: Anatomy): Row[] {
  const spent = Object.entries(totals)
    .filter(([, time]) => time > 0)
    .sort(([, left], [, right]) => right - left);
  const sum = spent.reduce((total, [, time]) => total + time, 0);
  if (sum === 0) return [];
  const named = (kind: string) => (kind === "agent" ? "agent's own code" : kind.replaceAll("_", " "));
  const shares = spent.map(([kind, time]) => `${named(kind)} ${((100 * time) / sum).toFixed(0)}%`);
  const slow = slowest.map(({ rollout: index, milliseconds, mostly }) => {
    const { task, rollout } = rollouts[index]!;
    return `${task}:${rollout} ${(milliseconds / 1000).toFixed(1)} s, mostly ${named(mostly)}`;
  });
  return [[span(`time: ${shares.join(", ")}`, dim)], [span(`slowest: ${slow.join("; ")}`, dim)]];
}

export const episodeHead: Row = [
  span("reward  advantage  turns  tokens  ended by                      task and reply", dim),
];

export function episodeRow(row: EpisodeRow): Row {
  const { turns, tokens, termination, failure, id, preview, trajectories, matched } = row;
  // A filter such as role=judge shows the judge's reward.
  const found = matched === undefined ? undefined : trajectories[matched[0] ?? 0];
  const { reward, advantage } = found ?? row;
  const style = failure ? "33" : reward === null ? dim : Number(reward) > 0 ? "32" : "31";
  const learned = advantage === null ? "" : round(Number(advantage));
  return [
    span(reward === null ? "unknown" : round(Number(reward)).padEnd(6), style),
    span(`  ${learned.padStart(9)}  ${String(turns).padStart(5)}  ${String(tokens).padStart(6)}`),
    span(`  ${termination.padEnd(28)}  `),
    span(`${id}${found === undefined ? "" : ` (${found.role})`}  `, dim),
    span(preview),
  ];
}

function round(value: number): string {
  return Number.isInteger(value) ? String(value) : value.toPrecision(3);
}

// One episode for reading: its turns, with every sampled token colored.

export const colorings = ["advantage", "logprob", "mask"] as const;
export type Coloring = (typeof colorings)[number];

const red = "31";
const roles: Readonly<Record<string, string>> = { system: "35", user: "36", assistant: "32", tool: "33" };

export interface TranscriptOptions {
  coloring: Coloring;
  width: number;
  /** Without it a reply has one color. */
  pieces: Pieces | undefined;
}

export function transcript(episode: StoredEpisode, options: TranscriptOptions): Row[] {
  const { id, termination, correct, seconds, retries, failure, explanation, row } = episode;
  const rows: Row[] = [];
  const add = (...spans: Row) => rows.push(...wrap(spans, options.width));
  const verdict = correct === null ? "" : correct ? ", solved" : ", not solved";
  const attempts = retries > 0 ? `, after ${retries} failed attempts` : "";
  add(span(`${id}: ${termination}${verdict}, ${seconds.toFixed(1)} s${attempts}`, bold));
  if (failure) add(span(`failed: ${failure.boundary}: ${failure.message}`, red));
  if (explanation !== undefined) add(span(explanation, dim));
  if (row !== undefined) add(span("task: ", dim), span(toJson(row)));
  const metrics = Object.entries(episode.metrics).map(([name, value]) => `${name} ${value}`);
  if (metrics.length > 0) add(span("metrics: ", dim), span(metrics.join(", ")));
  if (options.pieces === undefined && options.coloring !== "mask") {
    add(span(`The run folder has no tokenizer, so a reply has one color: its mean ${options.coloring}.`, dim));
  }
  return [...rows, ...episode.trajectories.flatMap((trajectory) => trajectoryRows(trajectory, options))];
}

function trajectoryRows(trajectory: StoredTrajectory, options: TranscriptOptions): Row[] {
  const { name, instance, reward, scores = {}, advantage, steps } = trajectory;
  const parts = Object.entries(scores).map(([part, score]) => `${part} ${score}`);
  const sum = parts.length > 0 ? ` (${parts.join(", ")})` : "";
  const whole = typeof advantage === "number" ? `, advantage ${signed(advantage)}` : "";
  const title = `${name}${instance === undefined ? "" : ` ${instance}`}: reward ${reward ?? "unknown"}${sum}${whole}`;
  const rows: Row[] = [[], [span(title, "1;4")]];
  let known = 0;
  let offered = "";
  for (const [index, step] of steps.entries()) {
    const tools = (step.tools ?? []).map(signature).join("\n");
    if (tools !== offered) rows.push([], ...wrap([span("tools: ", dim), span(tools || "none")], options.width));
    offered = tools;
    // A history that a client rewrote is shown from its start.
    const from = step.messages.length > known && index > 0 ? known : 0;
    known = step.messages.length + 1;
    const history = step.messages.slice(from);
    rows.push([], ...history.flatMap((message) => messageRows(message, options)));
    rows.push(...replyRows(step, index, tokenAdvantages(trajectory, index, step.tokens.length), options));
  }
  return rows;
}

/** `add(a, b): Adds two numbers.` */
function signature({ name, description, parameters }: ToolDefinition): string {
  const { properties } = (parameters ?? {}) as { properties?: object };
  return `${name}(${Object.keys(properties ?? {}).join(", ")})${description ? `: ${description}` : ""}`;
}

function messageRows(message: ChatMessage, { width, coloring }: TranscriptOptions): Row[] {
  const { role, reasoning, toolCalls = [], name } = message;
  const content = describeContent(message.content);
  const style = coloring === "mask" ? dim : "";
  const rows: Row[] = [[span(`${role}${name === undefined ? "" : ` ${name}`}:`, ownValue(roles, role) ?? "")]];
  if (reasoning) rows.push(...wrap([span("thinking: ", dim), span(reasoning, dim)], width));
  if (content !== "" || toolCalls.length === 0) rows.push(...wrap([span(content, style)], width));
  for (const call of toolCalls) {
    const text = `${call.name}(${call.argumentsText ?? toJson(call.arguments)})`;
    rows.push(...wrap([span("calls ", dim), span(text, style)], width));
  }
  return rows;
}

function replyRows(
  step: Step,
  index: number,
  advantages: readonly number[] | undefined,
  { width, coloring, pieces }: TranscriptOptions,
): Row[] {
  const { promptTokens, tokens, logprobs, policyVersion, stopReason, reward } = step;
  const texts = pieces?.(tokens);
  const whole = () => span(step.text, tokenStyle(coloring, mean(logprobs), mean(advantages ?? [])));
  const reply = texts?.map((text, at) => span(text, tokenStyle(coloring, logprobs[at] ?? 0, advantages?.[at])));
  const sampled = `${tokens.length} sampled by version ${policyVersion}, ended by ${stopReason}`;
  const rewarded = reward === null ? "" : `, reward ${reward}`;
  const problems = (step.reply?.problems ?? []).map(({ kind, message }) => span(`${kind}: ${message}`, red));
  return [
    [span("assistant:", roles.assistant)],
    ...wrap(reply ?? [whole()], width),
    ...problems.flatMap((problem) => wrap([problem], width)),
    [span(`turn ${index + 1}: ${promptTokens.length} tokens of prompt, ${sampled}${rewarded}`, dim)],
  ];
}

const logprobShades = [
  { below: -4.6, style: "38;5;196" },
  { below: -2.3, style: "38;5;202" },
  { below: -0.7, style: "38;5;214" },
  { below: -0.1, style: "38;5;228" },
];
const advantageShades = [
  { from: 1.5, positive: "1;38;5;46", negative: "1;38;5;196" },
  { from: 0.5, positive: "38;5;40", negative: "38;5;167" },
  { from: 0, positive: "38;5;114", negative: "38;5;174" },
];

/**
 * Advantages: green above 0, red below, stronger with their size. Log-probabilities: the less likely, the redder.
 * The mask: inverts what the policy sampled, which is what it trains on.
 */
export function tokenStyle(coloring: Coloring, logprob: number, advantage: number | undefined): string {
  if (coloring === "mask") return "7";
  if (coloring === "logprob") return logprobShades.find(({ below }) => logprob < below)?.style ?? "";
  if (advantage === undefined || !Number.isFinite(advantage) || advantage === 0) return "";
  const shade = advantageShades.find(({ from }) => Math.abs(advantage) >= from);
  return (advantage > 0 ? shade?.positive : shade?.negative) ?? "";
}

export function legend(coloring: Coloring): Row {
  if (coloring === "mask") return [span("sampled, trained on", "7"), span("  prompt", dim)];
  const values = coloring === "advantage" ? [-2, -1, -0.2, 0, 0.2, 1, 2] : [0, -0.5, -1, -3, -6];
  const shown = values.map((value) => span(` ${signed(value)} `, tokenStyle(coloring, value, value)));
  return [span(`${coloring}:`, dim), ...shown];
}

function signed(value: number): string {
  return `${value > 0 ? "+" : ""}${Number(value.toFixed(3))}`;
}

// What the terminal shows, from the same index and filter as the page.

export interface RunContent {
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

/**
 * Indexes the whole run first.
 * @param filter "": all episodes
 * @throws FilterError
 */
export async function openContent(
  run: string,
  name: string,
  filter: string,
  cache: string = defaultCache(),
): Promise<RunContent & { close(): void }> {
  const condition = filterCondition(filter);
  const index = openRunIndex(run, cache);
  while (!(await index.refresh(1000)));
  const { database } = index;
  const { where, values, matching } = whereOf(database, condition);
  return {
    head: (width) => runHead(database, name, Math.min(width, 100)),
    files: database
      .prepare(`SELECT DISTINCT step, kind FROM trajectories WHERE ${where} ORDER BY step, kind`)
      .all([...values]) as StepFile[],
    fileRow: fileRows(database),
    times: ({ step, kind }) =>
      windowOf(database, kind, step) === undefined
        ? []
        : timeRows(anatomy(database, run, { step: String(step), kind })),
    episodes: ({ step, kind }) =>
      rowsWhere(database, `${where} AND step = ? AND kind = ? ORDER BY place`, [...values, step, kind], matching),
    read: ({ key }) => readOne(database, run, key).kept,
    pieces: openPieces(run),
    close: index.close,
  };
}
