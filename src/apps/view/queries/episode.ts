/** One episode for the page, with its turns, tokens and commands, and its rollout beside the others of its task. */
import { HoneError, readable, UserError } from "../../../base/errors.ts";
import { withInside } from "../../../base/files.ts";
import { mean, zip } from "../../../base/values.ts";
import { type ChatMessage, describeContent, imagesOf, type ToolCall as StoredCall } from "../../../chat/messages.ts";
import { readEpisode, type StoredEpisode, type StoredTrajectory, tokenAdvantages } from "../../../tracking/episodes.ts";
import { type PackedValues, type Pieces, readAt, toJson, unpackValues } from "../../../tracking/json-lines.ts";
import { continues } from "../../../trajectories/batch.ts";
import type { Step } from "../../../trajectories/types.ts";
import type { IndexDatabase } from "../database.ts";
import { episodesFolder } from "../index-episodes.ts";
import { type EpisodeRow, type IndexedRow, toRows, wholeRows } from "./episodes.ts";
import {
  fromStored,
  type Given,
  type JsonNumber,
  jsonNumbers,
  type Kind,
  kindOf,
  optional,
  required,
  toJsonNumber,
  wholeNumberOf,
} from "./parameters.ts";

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
function readStored(folder: string, at: { file: string; offset: number; length: number }): StoredEpisode {
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

// The commands of a conversation, with their exit codes: of tool calls, or of code blocks that a harness executed.

export interface Command {
  role: string;
  /** The model call, from 1. */
  turn: number;
  /** The name of the tool; null for a code block. */
  tool: string | null;
  command: string;
  /** What came back; null if the conversation ends before. */
  output: string | null;
  /** Null if the output does not say it. */
  exitCode: number | null;
}

const most = 300;
const [longestCommand, longestOutput] = [2000, 4000];

/** As agents write it: `exit code: 1`, `exited with code 1`, `<returncode>1</returncode>`, `"exit_code": 1`. */
const exitCodes =
  /(?:\bexit(?:ed with)?[ _]?(?:code|status)"?\s*[:=]?\s*|<returncode>\s*|\breturncode"?\s*[:=]\s*)(-?\d{1,3})\b/i;
const commandNames = ["command", "cmd", "script", "code"];
/** Other tools of coding agents are shown by the file that they use, and all others not at all. */
const fileNames = ["file_path", "filePath", "path", "file"];
const executed = /```(?:bash|sh|shell|mswea_bash_command)\n([\s\S]*?)\n?```/;

export function commandsOf(trajectories: readonly StoredTrajectory[]): Command[] {
  return trajectories.flatMap(commandsIn).slice(0, most);
}

function commandsIn({ name, instance, steps }: StoredTrajectory): Command[] {
  const role = instance === undefined ? name : `${name}#${instance}`;
  // Prompts repeat the history, so a later one has the results of all earlier calls.
  const results = new Map<string, string>();
  for (const message of steps.flatMap((step) => step.messages)) {
    if (message.role === "tool" && message.toolCallId)
      results.set(message.toolCallId, describeContent(message.content));
  }
  return steps.flatMap((step, index): Command[] => {
    const calls = (step.reply?.toolCalls ?? []).flatMap((call) => {
      const command = commandOf(call.arguments);
      const output = results.get(call.id) ?? null;
      return command === undefined ? [] : [{ role, turn: index + 1, tool: call.name, ...shown(command, output) }];
    });
    if (calls.length > 0) return calls;
    const block = executed.exec(step.text)?.[1];
    const answer = block === undefined ? undefined : answerTo(steps[index + 1]?.messages ?? [], step.messages.length);
    // A code block is a command only if the harness answers with an exit code.
    if (block === undefined || answer === undefined || !exitCodes.test(answer)) return [];
    return [{ role, turn: index + 1, tool: null, ...shown(block, answer) }];
  });
}

function shown(command: string, output: string | null) {
  const code = output === null ? null : exitCodes.exec(output);
  return {
    command: command.slice(0, longestCommand),
    output: output === null ? null : output.slice(0, longestOutput),
    exitCode: code ? Number(code[1]) : null,
  };
}

function commandOf(given: Readonly<Record<string, unknown>>): string | undefined {
  for (const name of [...commandNames, ...fileNames]) {
    const value = given[name];
    if (typeof value === "string") return value;
    if (Array.isArray(value) && value.every((part) => typeof part === "string")) return value.join(" ");
  }
  return undefined;
}

/** The message after the reply, which follows the prompt's own. */
function answerTo(messages: readonly ChatMessage[], prompt: number): string | undefined {
  const message = messages[prompt + 1];
  return message?.role === "user" ? describeContent(message.content) : undefined;
}

// Rollouts of one task that are compared with each other, in one step or in all.

interface Place {
  step: number;
  kind: Kind;
}

const placeOf = ({ step, kind }: Given<GroupsQuery>): Place => ({
  step: wholeNumberOf("step", required("step", step), 0),
  kind: kindOf(kind),
});

export interface GroupsQuery {
  step: string;
  /** Default: train. */
  kind?: Kind;
}

export function groupList(database: IndexDatabase, query: Given<GroupsQuery>) {
  return { groups: summaries(database, placeOf(query)) };
}

export interface GroupQuery extends GroupsQuery {
  task: string;
  /** Default: all roles. */
  role?: string;
}

export type Group = ReturnType<typeof group>;
export type GroupMember = Group["members"][number];

/**
 * All rollouts of one task in one step.
 * @throws UserError if there is no such task in this step
 */
export function group(database: IndexDatabase, folder: string, query: Given<GroupQuery>) {
  const { step, kind } = placeOf(query);
  const task = required("task", query.task);
  const groups = summaries(database, { step, kind }, task).filter(({ role }) => role === (query.role ?? role));
  const condition = "part = 0 AND step = ? AND kind = ? AND task = ? ORDER BY rollout, place";
  const rows = wholeRows(database, condition, [step, kind, task]);
  if (rows.length === 0)
    throw new UserError(`step ${step} has no ${kind} episodes of the task ${task}`, { code: "not_found" });
  const steps = database
    .prepare("SELECT DISTINCT step FROM trajectories WHERE task = ? AND kind = ? ORDER BY step")
    .all([task, kind]) as { step: number }[];
  let row: unknown = null;
  const members = zip(rows, toRows(database, rows)).map(([indexed, shown]) => {
    const kept = readStored(folder, indexed);
    row ??= kept.row;
    /** The last reply of each trajectory. */
    const replies = kept.trajectories.map((trajectory) => trajectory.steps.at(-1)?.text ?? "");
    return { ...shown, explanation: indexed.explanation, replies };
  });
  return {
    step,
    kind,
    task,
    row,
    /** One for each role. */
    groups,
    /** In the order of rollouts. */
    members,
    /** The steps of this kind that have the same task. */
    steps: steps.map((each) => each.step),
  };
}

export interface TaskQuery {
  task: string;
  /** Default: both. */
  kind?: Kind;
}

export type TaskHistory = ReturnType<typeof taskHistory>;

/**
 * The rollouts of one task in all steps, the oldest first.
 * @throws UserError if the run has no such task
 */
export function taskHistory(database: IndexDatabase, folder: string, query: Given<TaskQuery>) {
  const task = required("task", query.task);
  const kind = query.kind === undefined ? undefined : kindOf(query.kind);
  const rest = `part = 0 AND task = ? ${kind === undefined ? "" : "AND kind = ?"} ORDER BY step, kind, rollout, place`;
  const values = kind === undefined ? [task] : [task, kind];
  const found = wholeRows(database, rest, values);
  const [first] = found;
  if (first === undefined) throw new UserError(`the run has no episodes of the task ${task}`, { code: "not_found" });
  const rows = toRows(database, found);
  const bySteps = new Map<string, Pick<EpisodeRow, "step" | "kind"> & { episodes: EpisodeRow[] }>();
  for (const row of rows) {
    const { step, kind } = row;
    const known = bySteps.get(`${step} ${kind}`);
    if (known) known.episodes.push(row);
    else bySteps.set(`${step} ${kind}`, { step, kind, episodes: [row] });
  }
  const steps = Array.from(bySteps.values(), ({ step, kind, episodes }) => {
    return { step, kind, mean: meanOf(episodes.map(({ reward }) => reward)), episodes };
  });
  return { task, row: readStored(folder, first).row ?? null, steps };
}

function summaries(database: IndexDatabase, place: Place, task?: string) {
  const rows = database
    .prepare(
      `SELECT task, role, reward FROM trajectories
       WHERE step = ? AND kind = ? AND role IS NOT NULL ${task === undefined ? "" : "AND task = ?"}
       ORDER BY place, part`,
    )
    .all(task === undefined ? [place.step, place.kind] : [place.step, place.kind, task]) as Pick<
    IndexedRow,
    "task" | "role" | "reward"
  >[];
  const groups = new Map<string, { task: string; role: string; rewards: (JsonNumber | null)[] }>();
  for (const { task, role, reward } of rows) {
    const name = JSON.stringify([task, role]);
    const found = groups.get(name) ?? { task, role: role ?? "", rewards: [] };
    groups.set(name, found);
    found.rewards.push(fromStored(reward));
  }
  return Array.from(groups.values(), (found) => summarize(found, place));
}

export type GroupSummary = ReturnType<typeof summarize>;

function summarize(
  { task, role, rewards }: { task: string; role: string; rewards: (JsonNumber | null)[] },
  place: Place,
) {
  const known = rewards.filter((reward): reward is number => typeof reward === "number");
  const average = meanOf(known);
  const size = rewards.length;
  return {
    ...place,
    task,
    role,
    size,
    rewards,
    mean: average,
    deviation: average === null ? null : Math.sqrt(mean(known.map((reward) => (reward - average) ** 2))),
    /** Why all advantages are zero; null if they are not. */
    zeroSignal: place.kind === "train" ? noSignal(known, size) : null,
  };
}

/** Why a group has no training signal; null if it has one. */
function noSignal(known: readonly number[], size: number): string | null {
  if (known.length === 0) return `no reward of its ${size} rollouts is known`;
  if (known.length === 1) return "only one reward is known, so there is nothing to compare it with";
  const unknown = size > known.length ? ` (${size - known.length} unknown)` : "";
  if (known.every((reward) => reward === known[0])) return `all ${known.length} rewards are ${known[0]}${unknown}`;
  return null;
}

function meanOf(rewards: readonly (number | string | null)[]): number | null {
  const known = rewards.filter((reward): reward is number => typeof reward === "number");
  return known.length === 0 ? null : mean(known);
}
