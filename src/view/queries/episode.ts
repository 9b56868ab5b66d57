/** One episode with its turns and tokens, read from the run folder. */

import { describeContent, imagesOf } from "../../chat/images/content.ts";
import type { ChatMessage, ToolCall as KeptCall } from "../../chat/messages.ts";
import { UserError } from "../../errors.ts";
import { toJson } from "../../tracking/run-folder/json-lines.ts";
import {
  type KeptEpisode,
  type KeptTrajectory,
  type Pieces,
  tokenAdvantages,
} from "../../tracking/run-folder/kept-episodes.ts";
import { type PackedValues, unpackValues } from "../../tracking/run-folder/token-values.ts";
import { continues } from "../../trajectories/to-sequences.ts";
import type { Step } from "../../trajectories/types.ts";
import type {
  Episode,
  JsonNumber,
  Message,
  Reply,
  SampledTokens,
  TokenValues,
  ToolCall,
  TrajectoryDetail,
  Turn,
} from "../api.ts";
import type { IndexDatabase } from "../index/open-database.ts";
import { type IndexedRow, toRows, wholeRows } from "./episode-list.ts";
import { readKept } from "./read-kept.ts";
import { jsonNumbers, toJsonNumber } from "./stored.ts";

/** @throws UserError if there is no such episode */
export function readOne(database: IndexDatabase, folder: string, key: string): { row: IndexedRow; kept: KeptEpisode } {
  // Without "+", SQLite would read the index of all first trajectories.
  const [row] = wholeRows(database, "key = ? AND +part = 0", [key]);
  if (row === undefined)
    throw new UserError(`the run has no episode ${key}`, { code: "not_found", hint: "a resumed run repeats steps" });
  return { row, kept: readKept(folder, row) };
}

/** @param pieces undefined without a tokenizer */
export function episode(database: IndexDatabase, folder: string, key: string, pieces: Pieces | undefined): Episode {
  const { row, kept } = readOne(database, folder, key);
  const [shown] = toRows(database, [row]);
  const neighbor = (sign: "<" | ">", order: "DESC" | "ASC") =>
    (
      database
        .prepare(
          `SELECT key FROM trajectories WHERE part = 0 AND step = ? AND kind = ? AND place ${sign} ? ORDER BY place ${order} LIMIT 1`,
        )
        .get([row.step, row.kind, row.place]) as { key: string } | undefined
    )?.key ?? null;
  return {
    ...shown!,
    row: kept.row ?? null,
    explanation: kept.explanation ?? null,
    metrics: jsonNumbers(kept.metrics),
    retriedAfter: [...(kept.retriedAfter ?? [])],
    stack: kept.failure?.stack ?? null,
    detail: kept.trajectories.map((trajectory, index) => ({
      ...shown!.trajectories[index]!,
      scores: jsonNumbers(trajectory.scores ?? {}),
      turnList: turnsOf(trajectory, row.kind === "train", pieces),
    })),
    previous: neighbor("<", "DESC"),
    next: neighbor(">", "ASC"),
  };
}

function turnsOf(
  trajectory: KeptTrajectory,
  trained: boolean,
  pieces: Pieces | undefined,
): TrajectoryDetail["turnList"] {
  const { steps } = trajectory;
  let offered = "[]";
  return steps.map((step, index) => {
    const continued = longestContinued(step, steps.slice(0, index));
    const earlier = continued?.step;
    const seen = earlier === undefined ? 0 : earlier.promptTokens.length + earlier.tokens.length;
    const tools = JSON.stringify(step.tools ?? []);
    const isOffered = tools !== offered;
    offered = tools;
    return {
      messages: step.messages.slice(earlier === undefined ? 0 : earlier.messages.length + 1).map(toMessage),
      continues: continued?.index ?? null,
      starts: index > 0 && continued === undefined ? step.starts : undefined,
      tools: isOffered ? [...(step.tools ?? [])] : undefined,
      reply: toReply(step),
      promptLength: step.promptTokens.length,
      prompt: withPieces(step.promptTokens.subarray(seen), pieces),
      sampled: sampledTokens(trajectory, step, index, trained, pieces),
      stopReason: step.stopReason,
      cutOffBy: step.cutOffBy,
      reward: step.reward === null ? null : toJsonNumber(step.reward),
      processed: step.processed,
    } satisfies Turn;
  });
}

/** The earlier step that has most tokens of this one's prompt. */
function longestContinued(step: Step, earlier: readonly Step[]): { index: number; step: Step } | undefined {
  let best: { index: number; step: Step } | undefined;
  for (const [index, before] of earlier.entries()) {
    if (best && best.step.promptTokens.length >= before.promptTokens.length) continue;
    if (continues(step, before)) best = { index, step: before };
  }
  return best;
}

/** Rounded to 7 digits, the precision of 32-bit floats. */
const rounded = (value: number) => (Number.isInteger(value) ? value : Number(value.toPrecision(7)));

const withPieces = (tokens: Int32Array, pieces: Pieces | undefined) => ({
  ids: Array.from(tokens),
  pieces: pieces?.(tokens),
});

function sampledTokens(
  trajectory: KeptTrajectory,
  { tokens, logprobs, policyVersion, tokenVersions }: Step,
  index: number,
  trained: boolean,
  pieces: Pieces | undefined,
): SampledTokens {
  const recorded = trajectory.training?.[index];
  const values = (packed: PackedValues | undefined) => unpackValues(packed, tokens.length);
  const advantage = values(recorded?.advantage) ?? tokenAdvantages(trajectory, index, tokens.length);
  const optional = {
    trainerLogprobs: values(recorded?.logprobs),
    referenceLogprobs: values(recorded?.reference),
    ratio: values(recorded?.ratio),
    clipped: values(recorded?.clipped),
    entropy: values(recorded?.entropy),
    advantage,
    // Older runs recorded only advantages.
    mask: !trained
      ? undefined
      : (values(recorded?.mask) ?? [
          policyVersion >= 0 && advantage !== undefined && trajectory.training === undefined ? 1 : 0,
        ]),
  };
  return {
    ...withPieces(tokens, pieces),
    logprobs: valuesOf(logprobs),
    ...present(optional),
    version: tokenVersions === undefined ? policyVersion : valuesOf(tokenVersions),
  };
}

function present<Name extends string>(arrays: Record<Name, ArrayLike<number> | undefined>) {
  const found = Object.entries<ArrayLike<number> | undefined>(arrays).flatMap(([name, values]) =>
    values === undefined ? [] : [[name, valuesOf(values)] as const],
  );
  return Object.fromEntries(found) as Partial<Record<Name, TokenValues>>;
}

/** One number if all values are equal. NaN becomes null and means that the value of this token is unknown. */
function valuesOf(values: ArrayLike<number>): TokenValues {
  const list = Array.from(values, (value): JsonNumber | null =>
    Number.isNaN(value) ? null : toJsonNumber(rounded(value)),
  );
  const [first] = list;
  return typeof first === "number" && list.every((value) => value === first) ? first : list;
}

function toMessage(message: ChatMessage): Message {
  const { role, content, reasoning, toolCalls = [], toolCallId, name } = message;
  const images = imagesOf([message]).map(({ hash, width, height }) => ({ hash, width, height }));
  return {
    role,
    content: describeContent(content),
    images: images.length === 0 ? undefined : images,
    name,
    toolCallId,
    thinking: reasoning || undefined,
    toolCalls: toolCalls.length === 0 ? undefined : toolCalls.map(toCall),
  };
}

function toReply({ text, reply }: Step): Reply {
  const problems = (reply?.problems ?? []).map(({ kind, message }) => ({ kind, message }));
  return {
    text,
    content: reply?.content ?? text,
    thinking: reply?.reasoning || undefined,
    toolCalls: (reply?.toolCalls ?? []).map(toCall),
    problems,
  };
}

const toCall = ({ id, name, arguments: given, argumentsText }: KeptCall): ToolCall => ({
  id,
  name,
  arguments: argumentsText ?? toJson(given),
});
