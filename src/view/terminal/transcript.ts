/** One episode for reading: its turns, with every sampled token colored. */
import { describeContent } from "../../chat/images/content.ts";
import type { ChatMessage, ToolDefinition } from "../../chat/messages.ts";
import { own } from "../../own.ts";
import { mean } from "../../statistics.ts";
import { toJson } from "../../tracking/run-folder/json-lines.ts";
import type { Pieces } from "../../tracking/run-folder/pieces.ts";
import { type StoredEpisode, type StoredTrajectory, tokenAdvantages } from "../../tracking/run-folder/read-episode.ts";
import type { Step } from "../../trajectories/types.ts";
import { bold, dim, type Row, span, wrap } from "./styled.ts";

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
  const rows: Row[] = [[span(`${role}${name === undefined ? "" : ` ${name}`}:`, own(roles, role) ?? "")]];
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
