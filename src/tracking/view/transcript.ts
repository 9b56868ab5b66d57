/** One episode as a person reads it: its turns, and every sampled token coloured by what it counted for. */

import type { ChatMessage, ToolDefinition } from "../../chat/messages.ts";
import { own } from "../../own.ts";
import { toJson } from "../json-lines.ts";
import { type KeptEpisode, type KeptStep, type KeptTrajectory, type Pieces, tokenAdvantages } from "./kept-episodes.ts";
import { type Row, type Span, span, wrap } from "./styled.ts";

export const colourings = ["advantage", "logprob", "mask"] as const;
export type Colouring = (typeof colourings)[number];

const dim = "2";
const bold = "1";
const roles: Readonly<Record<string, string>> = { system: "35", user: "36", assistant: "32", tool: "33" };

export interface TranscriptOptions {
  colouring: Colouring;
  width: number;
  /** Without it a reply is one piece. */
  pieces: Pieces | undefined;
}

export function transcript(episode: KeptEpisode, options: TranscriptOptions): Row[] {
  const { width } = options;
  const verdict = episode.correct === null ? "" : episode.correct ? ", solved" : ", not solved";
  const head = `${episode.id}: ${episode.termination}${verdict}, ${episode.seconds.toFixed(1)} s${episode.retries > 0 ? `, after ${episode.retries} failed attempts` : ""}`;
  const metrics = Object.entries(episode.metrics)
    .map(([name, value]) => `${name} ${Number(value)}`)
    .join(", ");
  return [
    ...wrap([span(head, bold)], width),
    ...(episode.failure === undefined
      ? []
      : wrap([span(`failed: ${episode.failure.boundary}: ${episode.failure.message}`, "31")], width)),
    ...(episode.explanation === undefined ? [] : wrap([span(episode.explanation, dim)], width)),
    ...(episode.row === undefined ? [] : wrap([span("task: ", dim), span(toJson(episode.row))], width)),
    ...(metrics === "" ? [] : wrap([span("metrics: ", dim), span(metrics)], width)),
    ...episode.trajectories.flatMap((trajectory) => trajectoryRows(trajectory, options)),
  ];
}

function trajectoryRows(trajectory: KeptTrajectory, options: TranscriptOptions): Row[] {
  const { name, instance, reward, advantage, steps } = trajectory;
  const whole = typeof advantage === "number" ? `, advantage ${signed(advantage)}` : "";
  const title = `${name}${instance === undefined ? "" : ` ${instance}`}: reward ${reward ?? "unknown"}${whole}`;
  let known = 0;
  let offered = "";
  return [
    [],
    [span(title, "1;4")],
    ...steps.flatMap((step, index) => {
      // What a client rewrote is shown from the start again.
      const from = step.messages.length > known && index > 0 ? known : 0;
      known = step.messages.length + 1;
      const tools = (step.tools ?? []).map(signature).join("\n");
      const changed = tools !== offered;
      offered = tools;
      return [
        ...(changed ? [[], ...wrap([span("tools: ", dim), span(tools || "none")], options.width)] : []),
        ...stepRows(trajectory, step, index, from, options),
      ];
    }),
  ];
}

/** `add(a, b): Adds two numbers.` */
function signature({ name, description, parameters }: ToolDefinition): string {
  const { properties } = (parameters ?? {}) as { properties?: object };
  return `${name}(${Object.keys(properties ?? {}).join(", ")})${description ? `: ${description}` : ""}`;
}

/** A message of the history: what was thought, said, called, and answered by a tool. */
function messageRows(
  { role, content, reasoning, toolCalls = [], name }: ChatMessage,
  width: number,
  style: string,
): Row[] {
  return [
    [span(`${role}${name === undefined ? "" : ` ${name}`}:`, own(roles, role) ?? "")],
    ...(reasoning ? wrap([span("thinking: ", dim), span(reasoning, dim)], width) : []),
    ...(content === "" && toolCalls.length > 0 ? [] : wrap([span(content, style)], width)),
    ...toolCalls.flatMap((call) =>
      wrap([span("calls ", dim), span(`${call.name}(${call.argumentsText ?? toJson(call.arguments)})`, style)], width),
    ),
  ];
}

function stepRows(
  trajectory: KeptTrajectory,
  step: KeptStep,
  index: number,
  from: number,
  options: TranscriptOptions,
): Row[] {
  const { width, pieces } = options;
  const messages = step.messages
    .slice(from)
    .flatMap((message) => messageRows(message, width, options.colouring === "mask" ? dim : ""));
  const reward = step.reward === null ? "" : `, reward ${step.reward}`;
  const turn = `turn ${index + 1}: ${step.promptTokens.length} tokens of prompt, ${step.tokens.length} sampled by version ${step.policyVersion}, ended by ${step.stopReason}${reward}`;
  const advantages = tokenAdvantages(trajectory, index, step.tokens.length);
  const texts = pieces?.(step.tokens);
  const reply: Span[] =
    texts === undefined
      ? [span(step.text, tokenStyle(options.colouring, mean(step.logprobs.map(Number)), mean(advantages ?? [])))]
      : texts.map((text, token) =>
          span(text, tokenStyle(options.colouring, Number(step.logprobs[token]), advantages?.[token])),
        );
  const problems = (step.reply?.problems ?? []).flatMap(({ kind, message }) =>
    wrap([span(`${kind}: ${message}`, "31")], width),
  );
  return [
    [],
    ...messages,
    [span("assistant:", roles.assistant)],
    ...wrap(reply, width),
    ...problems,
    [span(turn, dim)],
  ];
}

/**
 * Advantages: green above 0, red below, stronger from 0.5 and 1.5 on. Log-probabilities: the less likely, the hotter.
 * The mask: what was sampled by the policy, and is trained on, stands out.
 */
export function tokenStyle(colouring: Colouring, logprob: number, advantage: number | undefined): string {
  if (colouring === "mask") return "7";
  if (colouring === "logprob") {
    const shades = ["", "38;5;228", "38;5;214", "38;5;202", "38;5;196"];
    const bounds = [0.1, 0.7, 2.3, 4.6];
    return shades[bounds.filter((bound) => -logprob > bound).length]!;
  }
  if (advantage === undefined || !Number.isFinite(advantage) || advantage === 0) return "";
  const strength = [0.5, 1.5].filter((bound) => Math.abs(advantage) >= bound).length;
  return advantage > 0
    ? ["38;5;114", "38;5;40", "1;38;5;46"][strength]!
    : ["38;5;174", "38;5;167", "1;38;5;196"][strength]!;
}

export function legend(colouring: Colouring): Row {
  if (colouring === "mask") return [span("sampled, trained on", "7"), span("  prompt", dim)];
  const values = colouring === "advantage" ? [-2, -1, -0.2, 0, 0.2, 1, 2] : [0, -0.5, -1, -3, -6];
  const shown = values.map((value) =>
    span(
      ` ${signed(value)} `,
      colouring === "advantage" ? tokenStyle(colouring, 0, value) : tokenStyle(colouring, value, 0),
    ),
  );
  return [span(`${colouring}:`, dim), ...shown];
}

function signed(value: number): string {
  return `${value > 0 ? "+" : ""}${Number(value.toFixed(3))}`;
}

function mean(values: readonly number[]): number {
  return values.length === 0 ? 0 : values.reduce((sum, value) => sum + value, 0) / values.length;
}
