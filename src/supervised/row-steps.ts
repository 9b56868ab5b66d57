/** A row as the steps of a trajectory, and rows as batches, as if they had been sampled. */
import { setImmediate } from "node:timers/promises";
import { HoneError, RunError, UserError } from "../base/errors.ts";
import { concatenate } from "../base/values.ts";
import { openConversation } from "../chat/conversation.ts";
import { checkImages, type NoVision, prepareImages, type Vision } from "../chat/images.ts";
import { type ChatMessage, type ToolDefinition, textOf } from "../chat/messages.ts";
import type { Chat } from "../chat/types.ts";
import type { trainedParts } from "../config/schema/training.ts";
import type { Config } from "../config/schema.ts";
import type { Dataset, Task } from "../data/dataset.ts";
import type { StepInput } from "../trainer/step-source.ts";
import { type MemberAdvantage, toBatch } from "../trajectories/batch.ts";
import type { Episode, Step, Trajectory, TrajectoryGroup } from "../trajectories/types.ts";
import { type Example, type LengthLimit, limitLength, type RowMessage } from "./rows.ts";

export type TrainOn = (typeof trainedParts)[number];

export interface Renderer {
  chat: Chat;
  vision: Vision | NoVision;
}

/**
 * A reply whose prompt does not begin with the steps before it, because the template drops earlier thinking, starts a new
 * sequence, as in rollouts.
 *
 * @throws UserError without the row's origin
 */
export async function rowSteps(example: Example, renderer: Renderer, trainOn: TrainOn): Promise<Step[]> {
  if (example.kind === "tokens") return tokenSteps(example.tokens, example.trained, renderer.chat);
  if (example.kind === "text") return textSteps(example, renderer.chat);
  const { messages, tools } = example;
  if (trainOn === "all_tokens" || trainOn === "all_messages") return wholeSteps(messages, tools, renderer, trainOn);
  const weights = weightsOf(messages, trainOn);
  const onlyReplies = messages.every(({ role }, index) => role === "assistant" || weights[index] === 0);
  return onlyReplies
    ? replySteps(messages, tools, weights, renderer)
    : wholeSteps(messages, tools, renderer, (index) => weights[index] === 1);
}

/**
 * What can be said without encoding it, and without reading images.
 *
 * @param renders also try the chat template
 * @throws UserError without the row's origin, if it cannot be learned
 */
export async function checkExample(
  example: Example,
  { chat, vision, vocabularySize }: Renderer & { vocabularySize: number },
  trainOn: TrainOn,
  renders: boolean,
): Promise<void> {
  if (example.kind === "tokens") {
    if (!example.trained.includes(1)) throw new UserError("labels are all -100, so nothing is learned");
    const unknown = example.tokens.find((token) => token >= vocabularySize);
    if (unknown !== undefined)
      throw new UserError(`input_ids has ${unknown}, but the model has only ${vocabularySize} tokens`);
  }
  if (example.kind !== "chat") return;
  const { messages, tools } = example;
  const plain = messages.map(plainMessage);
  await checkImages(plain, vision);
  const options = { tools, addGenerationPrompt: false };
  if (trainOn === "all_tokens" || trainOn === "all_messages") {
    if (renders) chat.renderText(plain, options);
    return;
  }
  const weights = weightsOf(messages, trainOn);
  if (!weights.includes(1)) throw new UserError(`none of its messages is learned with sft.train_on=${trainOn}`);
  if (weights[0] === 1 && messages[0]!.role === "assistant")
    throw new UserError("the first message is the assistant's, so it has no prompt");
  if (!renders) return;
  const last = weights.lastIndexOf(1);
  const [before, learned] = [plain.slice(0, last), plain[last]!];
  if (learned.role === "assistant") replyText(chat, before, learned, tools);
  else chat.renderText([...before, learned], options);
}

function weightsOf(messages: readonly RowMessage[], trainOn: TrainOn): (0 | 1)[] {
  if (trainOn === "customized") {
    const missing = messages.findIndex(({ trainable }) => trainable === undefined);
    if (missing >= 0)
      throw new UserError(`message ${missing + 1} has no "trainable", which sft.train_on=customized needs`);
    return messages.map(({ trainable }) => (trainable ? 1 : 0));
  }
  const last = messages.findLastIndex(({ role }) => role === "assistant");
  const first = {
    all_assistant_messages: 0,
    last_assistant_message: last,
    last_assistant_turn: messages.findLastIndex(({ role }) => role === "user"),
  }[trainOn as "all_assistant_messages"];
  return messages.map(({ role, weight = 1 }, index) =>
    role === "assistant" && index >= first && weight === 1 ? 1 : 0,
  );
}

/** The reply's tokens follow the tokens of its prompt, and end with the end of its turn. */
async function replySteps(
  given: readonly RowMessage[],
  tools: readonly ToolDefinition[],
  weights: readonly number[],
  { chat, vision }: Renderer,
): Promise<Step[]> {
  const { messages, images } = await prepareImages(given.map(plainMessage), vision);
  const conversation = openConversation(chat, { guardText: false });
  const steps: Step[] = [];
  for (const [index, message] of messages.entries()) {
    if (weights[index] === 0) continue;
    const before = messages.slice(0, index);
    const turn = await conversation.beginLater(before, { tools }, { images });
    const tokens = await chat.encodeLater(replyText(chat, before, message, tools));
    turn.record({ tokens });
    const step = givenStep(chat, turn.prompt, tokens);
    steps.push({
      ...step,
      messages: before,
      ...(tools.length > 0 ? { tools } : {}),
      ...(turn.media ? { media: turn.media } : {}),
      ...(turn.starts ? { starts: turn.starts } : {}),
    });
  }
  return steps;
}

/** What the model would have to sample: the text between the prompt and the end of the turn, and the end itself. */
function replyText(
  chat: Chat,
  before: readonly ChatMessage[],
  reply: ChatMessage,
  tools: readonly ToolDefinition[],
): string {
  const prompt = chat.renderText(before, { tools });
  const whole = chat.renderText([...before, reply], { tools, addGenerationPrompt: false });
  return closed(chat, afterPrompt(prompt, whole, reply));
}

const thinkingOpened = /<think>\s*$/;

function afterPrompt(prompt: string, whole: string, { role, reasoning, content }: ChatMessage): string {
  if (whole.startsWith(prompt)) return whole.slice(prompt.length);
  // The prompt opens the thinking, and the template does not write it in a finished reply.
  const header = prompt.replace(thinkingOpened, "");
  if (header !== prompt && whole.startsWith(header)) {
    const shown = whole.slice(header.length);
    const thinking = reasoning === undefined || shown.includes(reasoning.trim()) ? "" : `${reasoning.trim()}\n`;
    return `${thinking}</think>\n\n${shown.replace(/^\s*<\/think>\s*/, "")}`;
  }
  throw new UserError(
    `the chat template does not render this ${role} message after its prompt: ${textOf(content).slice(0, 80)}`,
    {
      hint: "rollout_engine.renderer_name selects another format",
    },
  );
}

/** Without what the template writes after the end of the turn. */
function closed({ turnEnd, eosId, decode }: Chat, text: string): string {
  if (turnEnd === undefined) return eosId === null ? text : text + decode([eosId]);
  const end = text.lastIndexOf(turnEnd);
  return end < 0 ? text + turnEnd : text.slice(0, end + turnEnd.length);
}

/** For training on other messages than replies: the conversation is rendered once, as a whole. */
async function wholeSteps(
  given: readonly RowMessage[],
  tools: readonly ToolDefinition[],
  { chat, vision }: Renderer,
  trained: "all_tokens" | "all_messages" | ((index: number) => boolean),
): Promise<Step[]> {
  const { messages } = await prepareImages(given.map(plainMessage), vision);
  if (messages.some(({ content }) => typeof content !== "string")) {
    throw new UserError("only replies can be trained in a row with images", {
      hint: "sft.train_on=all_assistant_messages",
    });
  }
  const options = { tools, addGenerationPrompt: false };
  const whole = chat.renderText(messages, options);
  if (trained === "all_tokens") return tokenSteps(await chat.encodeLater(whole), undefined, chat);
  const pieces: Piece[] = [];
  let at = 0;
  for (const [index, message] of messages.entries()) {
    const until = chat.renderText(messages.slice(0, index + 1), options);
    if (!whole.startsWith(until) || until.length < at) {
      throw new UserError(`the chat template renders message ${index + 1} in another way if further messages follow`, {
        hint: "train on replies: sft.train_on=all_assistant_messages",
      });
    }
    const begin = at + headerLength(chat, messages.slice(0, index), message, tools, at);
    const body = closed(chat, until.slice(begin));
    const end = Math.min(begin + body.length, until.length);
    const learned = trained === "all_messages" ? given[index]?.weight !== 0 : trained(index);
    pieces.push({ text: whole.slice(at, begin), trained: false }, { text: whole.slice(begin, end), trained: learned });
    pieces.push({ text: until.slice(end), trained: false });
    at = until.length;
  }
  return pieceSteps(chat, pieces, messages);
}

const mark = "Qz7message7zQ";

/** Length of what the template writes before the message's own text. */
function headerLength(
  chat: Chat,
  before: readonly ChatMessage[],
  message: ChatMessage,
  tools: readonly ToolDefinition[],
  at: number,
): number {
  if (message.role === "assistant") {
    const prompt = chat.renderText(before, { tools });
    return prompt.length - at;
  }
  const marked = chat.renderText([...before, { ...message, content: mark }], { tools, addGenerationPrompt: false });
  return Math.max(0, marked.indexOf(mark, at) - at);
}

interface Piece {
  text: string;
  trained: boolean;
}

async function pieceSteps(chat: Chat, pieces: readonly Piece[], messages: readonly ChatMessage[]): Promise<Step[]> {
  const steps: Step[] = [];
  let before = new Int32Array(0);
  for (const { text, trained } of pieces) {
    if (text === "") continue;
    const tokens = await chat.encodeLater(text);
    if (trained && before.length > 0) steps.push({ ...givenStep(chat, before, tokens), messages });
    before = concatenate(Int32Array, [before, tokens]);
  }
  return steps;
}

/** TRL's: the end of text follows, if it is not there. */
function textSteps({ prompt, text }: { prompt: string; text: string }, chat: Chat): Step[] {
  const { eosId } = chat;
  const eos = eosId === null ? "" : chat.decode([eosId]);
  const ended = text.endsWith(eos) ? text : text + eos;
  const whole = chat.encode(prompt + ended, { addSpecial: true });
  if (prompt === "") return tokenSteps(whole, undefined, chat);
  const context = chat.encode(prompt, { addSpecial: true });
  const isPrefix = context.every((token, index) => token === whole[index]);
  return [givenStep(chat, context, isPrefix ? whole.subarray(context.length) : chat.encode(ended))];
}

/** @param trained `[L-1]` 0 or 1 for each token but the first; default: all */
function tokenSteps(tokens: Int32Array, trained: Uint8Array | undefined, chat: Chat): Step[] {
  if (tokens.length < 2) throw new UserError("it has fewer than two tokens");
  const steps: Step[] = [];
  for (let from = 1; from < tokens.length; ) {
    const flag = trained?.[from - 1] ?? 1;
    let end = from + 1;
    while (end < tokens.length && (trained?.[end - 1] ?? 1) === flag) end++;
    if (flag === 1) steps.push(givenStep(chat, tokens.subarray(0, from), tokens.subarray(from, end)));
    from = end;
  }
  return steps;
}

function givenStep(chat: Chat, promptTokens: Int32Array, tokens: Int32Array): Step {
  return {
    promptTokens,
    tokens,
    logprobs: new Float32Array(tokens.length).fill(Number.NaN),
    given: true,
    policyVersion: 0,
    stopReason: "stop",
    text: chat.decode(tokens, { skipSpecial: true }),
    messages: [],
    reward: null,
  };
}

/** Without what only rows have. */
const plainMessage = ({ weight: _, trainable: __, ...message }: RowMessage): ChatMessage => message;

// Rows of a step: checked, limited in length, and as the episodes and sequences that the loop takes.

export function lengthLimit({ data, training }: Config, contextWindow: number): LengthLimit {
  return { most: Math.min(data.max_length ?? training.max_length, contextWindow), truncation: data.truncation };
}

/** Adds the row's origin to an error. */
export async function ofRow<T>({ origin }: Task, work: () => Promise<T> | T): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (!(error instanceof HoneError) || error.message.startsWith(origin)) throw error;
    const Kind = error instanceof RunError ? RunError : UserError;
    throw new Kind(`${origin}: ${error.message}`, { hint: error.hint, cause: error });
  }
}

/** Rendering takes up to a millisecond. Of more rows, this many are rendered before the run starts, evenly spaced. */
const mostRendered = 20_000;

/** Invalid rows that are named in one message. */
const mostNamed = 5;

/**
 * Checks every row before the run starts, so that an invalid row 70,000 does not stop it overnight. If long rows are
 * refused, those that may be too long are encoded.
 *
 * @param check returns what is strange about the row, in the plural, or undefined
 * @throws UserError naming the first invalid rows and the number of the others
 */
export async function checkRows(
  dataset: Dataset<unknown>,
  { truncation, most }: LengthLimit,
  check: (task: Task, renders: boolean) => Promise<string | undefined>,
  encode: (task: Task) => Promise<unknown>,
  warn: (text: string) => void,
): Promise<void> {
  const strange = new Map<string, { count: number; first: string }>();
  const refused: UserError[] = [];
  const distance = Math.ceil(dataset.size / mostRendered);
  for (let index = 0; index < dataset.size; index++) {
    // A signal can end the check.
    if (index % 1000 === 0) await setImmediate();
    const task = dataset.task(index);
    try {
      const why = await ofRow(task, () => check(task, index % distance === 0));
      if (why !== undefined) {
        const { count, first } = strange.get(why) ?? { count: 0, first: task.origin };
        strange.set(why, { count: count + 1, first });
      }
      // A token is at least one byte; a template writes less than half of the text.
      const mayBeLong = truncation === "error" && JSON.stringify(task.row).length > most / 2;
      if (mayBeLong) await ofRow(task, () => encode(task));
    } catch (error) {
      if (!(error instanceof UserError)) throw error;
      refused.push(error);
    }
  }
  if (refused.length > 0) throw joinErrors(refused, dataset.size);
  if (distance > 1) warn(`the chat template was tried with every ${distance}th of ${dataset.size} rows`);
  for (const [why, { count, first }] of strange) warn(`${count} of ${dataset.size} rows ${why}; the first is ${first}`);
}

function joinErrors([first, ...others]: readonly UserError[], size: number): UserError {
  if (others.length === 0) return first!;
  const named = [first!, ...others.slice(0, mostNamed - 1)].map(({ message }) => `\n  ${message}`);
  const more = others.length + 1 - named.length;
  const rest = more === 0 ? "" : `\n  and ${more} more`;
  return new UserError(`${others.length + 1} of ${size} rows cannot be learned:${named.join("")}${rest}`, {
    hint: first!.hint,
    cause: first,
  });
}

/** A trajectory of given steps, by its role. */
export interface GivenTrajectory {
  role: string;
  steps: readonly Step[];
}

/** One row of a step's data. */
export interface GivenRow {
  task: Task;
  trajectories: readonly GivenTrajectory[];
  cut: number;
  dropped: number;
}

export async function limited(
  steps: Promise<Step[]>,
  role: string,
  limit: LengthLimit,
): Promise<{ trajectory: GivenTrajectory; cut: number; dropped: number }> {
  const { steps: left, change } = limitLength(await steps, limit);
  return { trajectory: { role, steps: left }, cut: Number(change === "cut"), dropped: Number(change === "dropped") };
}

/** Rows as the input of a step. Each row is an episode, so that it is recorded and shown like a rollout. */
export function toStepInput(rows: readonly GivenRow[], epoch: number, most: number): StepInput {
  const episodes: Episode[] = [];
  const groups: TrajectoryGroup[] = [];
  const rowOf: number[] = [];
  for (const [row, { task, trajectories }] of rows.entries()) {
    const own = trajectories.map(({ role, steps }): Trajectory => ({ name: role, steps: [...steps], reward: null }));
    const episode: Episode = {
      id: `${task.id}:0`,
      taskId: task.id,
      rollout: 0,
      trajectories: own,
      termination: "env_done",
      correct: null,
      metrics: {},
      retries: 0,
      seconds: 0,
    };
    episodes.push(episode);
    for (const trajectory of own) {
      // Nothing compares rewards.
      const members = [{ episode, trajectory, reward: Number.NaN }];
      rowOf.push(row);
      groups.push({ id: `${task.id}:${trajectory.name}`, taskId: task.id, role: trajectory.name, members });
    }
  }
  const weights = groups.map((): MemberAdvantage[] => [1]);
  const { batch, origins, metrics } = toBatch(groups, weights, { maxLength: most });
  const sum = (count: (row: GivenRow) => number) => rows.reduce((total, row) => total + count(row), 0);
  return {
    gathered: {
      epoch,
      episodes,
      groups: [],
      kept: groups,
      counts: { "data/cut_rows": sum(({ cut }) => cut), "data/dropped_rows": sum(({ dropped }) => dropped) },
      draws: 1,
      solved: { none: 0, partial: 0, all: 0 },
    },
    credit: { groups, advantages: weights, moments: undefined, metrics: {} },
    // All sequences of a row have one number.
    batch: { ...batch, groups: batch.groups.map((group) => rowOf[group]!) },
    origins,
    metrics,
  };
}
