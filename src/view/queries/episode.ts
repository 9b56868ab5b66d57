/** One episode with its turns and tokens, read from the run folder. */
import { describeContent, imagesOf } from "../../chat/images/content.ts";
import type { ChatMessage, ToolCall as StoredCall } from "../../chat/messages.ts";
import { HoneError, UserError } from "../../errors.ts";
import { withInside } from "../../files/regular-file.ts";
import { readable } from "../../system-errors.ts";
import { toJson } from "../../tracking/run-folder/json-lines.ts";
import { readAt } from "../../tracking/run-folder/lines.ts";
import type { Pieces } from "../../tracking/run-folder/pieces.ts";
import {
  readEpisode,
  type StoredEpisode,
  type StoredTrajectory,
  tokenAdvantages,
} from "../../tracking/run-folder/read-episode.ts";
import { type PackedValues, unpackValues } from "../../tracking/run-folder/token-values.ts";
import { continues } from "../../trajectories/to-sequences.ts";
import type { Step } from "../../trajectories/types.ts";
import { episodesFolder } from "../index/index-episodes.ts";
import type { IndexDatabase } from "../index/open-database.ts";
import { commandsOf } from "./commands.ts";
import { type IndexedRow, toRows, wholeRows } from "./episode-list.ts";
import { type JsonNumber, jsonNumbers, optional, toJsonNumber } from "./json.ts";

/** @throws UserError if there is no such episode */
export function readOne(
  database: IndexDatabase,
  folder: string,
  key: string,
): { row: IndexedRow; kept: StoredEpisode } {
  // Without "+", SQLite would read the index of all first trajectories.
  const [row] = wholeRows(database, "key = ? AND +part = 0", [key]);
  if (row === undefined)
    throw new UserError(`the run has no episode ${key}`, { code: "not_found", hint: "a resumed run repeats steps" });
  return { row, kept: readStored(folder, row) };
}

/**
 * Reads an episode from its place in the run folder.
 * @throws UserError if the file has changed since it was indexed
 */
export function readStored(folder: string, at: { file: string; offset: number; length: number }): StoredEpisode {
  const name = `${episodesFolder}/${at.file}`;
  try {
    const text = withInside(folder, name, (file) => readAt(file, at.offset, at.length));
    return readEpisode(text ?? "");
  } catch (cause) {
    if (readable(cause) instanceof HoneError) throw cause;
    throw new UserError(`${name} has changed since it was indexed`, {
      code: "not_found",
      hint: "load it again",
      cause,
    });
  }
}

export type Episode = ReturnType<typeof episode>;
export type TrajectoryDetail = Episode["detail"][number];
export type Turn = TrajectoryDetail["turnList"][number];

/** @param pieces undefined without a tokenizer */
export function episode(database: IndexDatabase, folder: string, key: string, pieces: Pieces | undefined) {
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
    /** The task's row. */
    row: kept.row ?? null,
    explanation: kept.explanation ?? null,
    trial: kept.trial ?? null,
    /** Of the conversations; those of the workflow itself are in `trial`. */
    commands: commandsOf(kept.trajectories),
    metrics: jsonNumbers(kept.metrics),
    retriedAfter: [...(kept.retriedAfter ?? [])],
    stack: kept.failure?.stack ?? null,
    detail: kept.trajectories.map((trajectory, index) => ({
      ...shown!.trajectories[index]!,
      /** The reward is their weighted sum. By reward model; `own` is the workflow's. Empty without reward models. */
      scores: jsonNumbers(trajectory.scores ?? {}),
      turnList: turnsOf(trajectory, row.kind === "train", pieces),
    })),
    /** The episodes before and after it in the same file. */
    previous: neighbor("<", "DESC"),
    next: neighbor(">", "ASC"),
  };
}

/** One for each model call. */
function turnsOf(trajectory: StoredTrajectory, trained: boolean, pieces: Pieces | undefined) {
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
      /** The messages that the prompt adds to those of turn `continues`. */
      messages: step.messages.slice(earlier === undefined ? 0 : earlier.messages.length + 1).map(toMessage),
      /** The earlier turn whose tokens this prompt continues; null if a new sequence begins. */
      continues: continued?.index ?? null,
      reply: toReply(step),
      promptLength: step.promptTokens.length,
      /** The part of the prompt after the tokens of turn `continues`. */
      prompt: withPieces(step.promptTokens.subarray(seen), pieces),
      sampled: sampledTokens(trajectory, step, index, trained, pieces),
      stopReason: step.stopReason,
      reward: step.reward === null ? null : toJsonNumber(step.reward),
      ...optional({
        /** Why a new sequence begins, e.g. `history_rewritten`; absent for the first turn. */
        starts: index > 0 && continued === undefined ? step.starts : undefined,
        /** The offered tools, if they differ from those of the previous turn. */
        tools: isOffered ? [...(step.tools ?? [])] : undefined,
        cutOffBy: step.cutOffBy,
        /** Whether the sampler's log-probabilities are those after temperature and filters. */
        processed: step.processed,
      }),
    };
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
  /** Joined, they are the decoded text; a character split over several tokens is in the last. Absent without a tokenizer. */
  ...optional({ pieces: pieces?.(tokens) }),
});

/** Values by token; a single number if all tokens have the same. */
export type TokenValues = number | (JsonNumber | null)[];
export type SampledTokens = ReturnType<typeof sampledTokens>;

/** The sampled tokens of a turn, and what is recorded about each. */
function sampledTokens(
  trajectory: StoredTrajectory,
  { tokens, logprobs, given, policyVersion, tokenVersions }: Step,
  index: number,
  trained: boolean,
  pieces: Pieces | undefined,
) {
  const recorded = trajectory.training?.[index];
  const values = (packed: PackedValues | undefined) => unpackValues(packed, tokens.length);
  const advantage = values(recorded?.advantage) ?? tokenAdvantages(trajectory, index, tokens.length);
  // Older runs recorded only advantages.
  const isTrained = policyVersion >= 0 && advantage !== undefined && trajectory.training === undefined;
  return {
    ...withPieces(tokens, pieces),
    /** Under the sampler, in nats; of the given tokens of a row, under the trainer. */
    logprobs: allOf((given && values(recorded?.logprobs)) || logprobs),
    version: tokenVersions === undefined ? policyVersion : allOf(tokenVersions),
    // What was not recorded is absent.
    ...optional({
      /** Under the trainer, in the first evaluation of the token, before the step's update. */
      trainerLogprobs: valuesOf(values(recorded?.logprobs)),
      referenceLogprobs: valuesOf(values(recorded?.reference)),
      teacherLogprobs: valuesOf(values(recorded?.teacher)),
      /** The token that the teacher would have sampled most likely; null: unknown. */
      teacherChoices: choicesOf(values(recorded?.choice), pieces),
      /** The token's probability in the last evaluation of the update, divided by that at its start. */
      ratio: valuesOf(values(recorded?.ratio)),
      /** 1: the clipped objective ignores the token's gradient. */
      clipped: valuesOf(values(recorded?.clipped)),
      /** Entropy of the trainer's distribution, in nats. */
      entropy: valuesOf(values(recorded?.entropy)),
      /** The advantage as used by the loss: after discount, normalization and penalties. */
      advantage: valuesOf(advantage),
      /** 1 if trained on; 0 if not, e.g. rejected or filtered: such a token has no color. Absent in a validation. */
      mask: trained ? valuesOf(values(recorded?.mask) ?? [Number(isTrained)]) : undefined,
    }),
  };
}

function choicesOf(tokens: Float32Array | undefined, pieces: Pieces | undefined) {
  return (
    tokens &&
    Array.from(tokens, (id) => {
      if (!Number.isSafeInteger(id)) return null;
      const [piece] = pieces?.(Int32Array.of(id)) ?? [];
      return { id, ...optional({ piece }) };
    })
  );
}

const valuesOf = (values: ArrayLike<number> | undefined) => (values === undefined ? undefined : allOf(values));

/** One number if all values are equal. NaN becomes null and means that the value of this token is unknown. */
function allOf(values: ArrayLike<number>): TokenValues {
  const list = Array.from(values, (value): JsonNumber | null =>
    Number.isNaN(value) ? null : toJsonNumber(rounded(value)),
  );
  const [first] = list;
  return typeof first === "number" && list.every((value) => value === first) ? first : list;
}

export type Message = ReturnType<typeof toMessage>;
export type MessageImage = NonNullable<Message["images"]>[number];

function toMessage(message: ChatMessage) {
  const { role, content, reasoning, toolCalls = [], toolCallId, name } = message;
  const images = imagesOf([message]).map(({ hash, width, height }) => ({ hash, width, height }));
  return {
    role,
    /** The text; images are written as "[image 64x48 png]". */
    content: describeContent(content),
    ...optional({
      /** In the order of the content. Their files are at `/api/runs/:run/media/:hash`. */
      images: images.length === 0 ? undefined : images,
      /** The tool that a tool's message is from. */
      name,
      toolCallId,
      thinking: reasoning || undefined,
      toolCalls: toolCalls.length === 0 ? undefined : toolCalls.map(toCall),
    }),
  };
}

function toReply({ text, reply }: Step) {
  const problems = (reply?.problems ?? []).map(({ kind, message }) => ({ kind, message }));
  return {
    /** The whole reply, without special tokens. */
    text,
    content: reply?.content ?? text,
    ...optional({ thinking: reply?.reasoning || undefined }),
    toolCalls: (reply?.toolCalls ?? []).map(toCall),
    problems,
  };
}

export type ToolCall = ReturnType<typeof toCall>;

const toCall = ({ id, name, arguments: given, argumentsText }: StoredCall) => ({
  id,
  name,
  /** As the model wrote them, or as JSON. */
  arguments: argumentsText ?? toJson(given),
});
