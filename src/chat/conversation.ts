/**
 * Conversations as tokens that are only appended to. A call's messages are compared with the recorded ones, a bridge is rendered from
 * the last reply to the next one, and only the bridge is encoded.
 */
import { randomInt } from "node:crypto";
import { isDeepStrictEqual } from "node:util";
import { UserError } from "../base/errors.ts";
import { concatenate, isObject, sortedJson } from "../base/values.ts";
import type { Media } from "../images/images.ts";
import { takeSeams, textsOf } from "./control-text.ts";
import { type PlacedImages, type PromptImages, placeImages } from "./images.ts";
import {
  type ChatMessage,
  hasImages,
  imagesOf,
  type ParsedReply,
  sameContent,
  type ToolCall,
  textOf,
  toMessage,
} from "./messages.ts";
import type { Chat, GuardedText, GuardOptions, LaterOptions, RenderOptions } from "./types.ts";

// Compares a client's copy of the history with the recorded history. Clients may serialize tool arguments again, fill in
// defaults, drop thinking, or write null for empty content; these differences are ignored.

/** A recorded message. `shown` is the part of a reply that the client received, if it was cut: see `cutAtStop`. */
interface RecordedMessage extends ChatMessage {
  shown?: string;
}

/** @returns the number of recorded messages that the given ones begin with, and the recorded id of each given call */
function matchHistory(
  recorded: readonly RecordedMessage[],
  given: readonly ChatMessage[],
): { matched: number; callIds: Map<string, string> } {
  const callIds = new Map<string, string>();
  const differs = recorded.findIndex((message, index) => {
    const copy = given[index];
    return copy === undefined || !sameMessage(message, copy, callIds);
  });
  return { matched: differs < 0 ? recorded.length : differs, callIds };
}

/** @param callIds filled with the recorded id of each given call */
function sameMessage(recorded: RecordedMessage, given: ChatMessage, callIds: Map<string, string>): boolean {
  if (recorded.role !== given.role) return false;
  if (recorded.role === "assistant") return sameReply(recorded, given, callIds);
  if (!sameContent(recorded.content, given.content)) return false;
  return recorded.role !== "tool" || recorded.toolCallId === translated(given.toolCallId, callIds);
}

function sameReply(recorded: RecordedMessage, given: ChatMessage, callIds: Map<string, string>): boolean {
  const calls = recorded.toolCalls ?? [];
  const back = given.toolCalls ?? [];
  const pairs = back.flatMap((copy, index) => {
    const call = calls[index];
    return call !== undefined && sameCall(call, copy) ? [{ call, copy }] : [];
  });
  if (calls.length !== back.length || pairs.length !== back.length) return false;
  const content = textOf(given.content).trim();
  const own = textOf(recorded.content);
  const shown = recorded.shown ?? own;
  const said = [own, shown, thoughtAsText({ ...recorded, content: shown })].map((text) => text.trim());
  // Clients often drop text next to tool calls.
  if (!said.includes(content) && !(content === "" && calls.length > 0)) return false;
  if (given.reasoning && given.reasoning.trim() !== (recorded.reasoning ?? "").trim()) return false;
  for (const { call, copy } of pairs) callIds.set(copy.id, call.id);
  return true;
}

/** A streamed reply whose thinking only ends, as its client got it: the thinking as text, then the answer. */
export const thoughtAsText = ({ reasoning = "", content }: { reasoning?: string | undefined; content: string }) =>
  `${reasoning}\n\n${content}`.trim();

/** A call with the same id may have gained defaults and lost unknown keys, but no value may differ. */
function sameCall(recorded: ToolCall, given: ToolCall): boolean {
  if (recorded.name !== given.name) return false;
  if (recorded.id === given.id) return agree(recorded.arguments, given.arguments);
  return isDeepStrictEqual(recorded.arguments, given.arguments);
}

function agree(left: unknown, right: unknown): boolean {
  if (!isObject(left) || !isObject(right)) {
    if (Array.isArray(left) && Array.isArray(right)) {
      return left.length === right.length && left.every((value, index) => agree(value, right[index]));
    }
    return isDeepStrictEqual(left, right);
  }
  return Object.entries(left).every(([key, value]) => !Object.hasOwn(right, key) || agree(value, right[key]));
}

const translated = (id: string | undefined, callIds: ReadonlyMap<string, string>) =>
  id === undefined ? undefined : (callIds.get(id) ?? id);

// Renders the text between a sampled reply and the next one: the end of the turn, the new messages, the header of the next
// turn. The whole conversation is rendered with marks in place of sampled text, so sampled text is never encoded again.

export interface Bridge {
  /** From the end of the reply's turn to the header of the next turn. */
  text: string;
  /** See `GuardedText`. */
  seam: string | undefined;
  /** Whether `text` begins with the end of the reply's turn, which the model may have sampled itself, or with the next turn. */
  hasTurnEnd: boolean;
  /** The template drops thinking that the tokens so far contain. */
  dropsReasoning: boolean;
  /** Indices of messages, including `next`, whose thinking is not in the tokens. */
  hidden: ReadonlySet<number>;
}

/** Texts that stand for a reply and for thinking while a conversation is rendered. */
interface Marks {
  reply: string;
  thinking(index: number): string;
}

/** Nobody can guess the marks, and none of the conversation's texts contains them. */
function unusedMarks(messages: readonly ChatMessage[], { tools = [] }: RenderOptions): Marks {
  const texts = textsOf(messages, tools);
  for (;;) {
    const start = `Qz${Array.from({ length: 16 }, () => String.fromCharCode(randomInt(97, 123))).join("")}`;
    if (texts.some((text) => text.includes(start))) continue;
    return { reply: `${start}reply7zQ`, thinking: (index) => `${start}thinking${index}7zQ` };
  }
}

/**
 * @param history up to the sampled reply, which is its last message
 * @param hidden indices of the history's messages whose thinking is not in the tokens so far
 * @param next the messages after the reply; may be empty
 * @returns null if the template does not render the reply, so that the conversation cannot be continued from it
 * @throws UserError if the template refuses the messages
 */
export function bridge(
  chat: Pick<Chat, "renderGuarded" | "turnEnds">,
  history: readonly ChatMessage[],
  hidden: ReadonlySet<number>,
  next: readonly ChatMessage[],
  options: RenderOptions & GuardOptions,
): Bridge | null {
  const marks = unusedMarks([...history, ...next], options);
  const marked = history.map(markThinking(marks));
  const rendered = renderMarked(chat, marked, next, options, marks);
  if (rendered === null) return null;
  const { text, seam } = rendered;
  const after = text.lastIndexOf(marks.reply) + marks.reply.length;
  const dropsReasoning = hiddenIn(text, history, marks).some((index) => !hidden.has(index));
  const written = takeSeams(text.slice(after), seam).text;
  const hiddenNext = next.flatMap(({ reasoning }, index) =>
    reasoning && !written.includes(reasoning.trim()) ? [history.length + index] : [],
  );
  const found = { dropsReasoning, seam, hidden: new Set([...hidden, ...hiddenNext]) };
  if (chat.turnEnds.length === 0) return { text: text.slice(after), hasTurnEnd: false, ...found };
  const ends = chat.turnEnds.map((end) => text.indexOf(end, after)).filter((end) => end >= 0);
  return ends.length === 0 ? null : { text: text.slice(Math.min(...ends)), hasTurnEnd: true, ...found };
}

/**
 * The mark is in the arguments of the reply's calls, which most templates write last, else in its content.
 *
 * @returns null if the template does not render the reply
 * @throws UserError if the template refuses the messages
 */
function renderMarked(
  chat: Pick<Chat, "renderGuarded">,
  history: readonly ChatMessage[],
  next: readonly ChatMessage[],
  options: RenderOptions & GuardOptions,
  { reply }: Marks,
): GuardedText | null {
  const render = (mark: (message: ChatMessage, reply: string) => ChatMessage) =>
    renderReplies(chat, history.with(-1, mark(history.at(-1)!, reply)), next, options);
  if (history.at(-1)?.toolCalls?.length) {
    try {
      const rendered = render(markCalls);
      if (rendered.text.includes(reply)) return rendered;
    } catch (error) {
      if (!(error instanceof UserError)) throw error;
    }
  }
  const rendered = render(markReply);
  return rendered.text.includes(reply) ? rendered : null;
}

/** Some templates refuse replies with several tool calls. They get the first one only. */
function renderReplies(
  chat: Pick<Chat, "renderGuarded">,
  history: readonly ChatMessage[],
  next: readonly ChatMessage[],
  options: RenderOptions & GuardOptions,
): GuardedText {
  try {
    return chat.renderGuarded([...history, ...next], options);
  } catch (error) {
    if (history.every(({ toolCalls = [] }) => toolCalls.length < 2)) throw error;
    const single = history.map(({ toolCalls = [], ...message }) =>
      toolCalls.length === 0 ? message : { ...message, toolCalls: toolCalls.slice(0, 1) },
    );
    return chat.renderGuarded([...single, ...next], options);
  }
}

/** Indices of the messages whose thinking the template drops. */
function hiddenThinking(
  chat: Pick<Chat, "renderText">,
  messages: readonly ChatMessage[],
  { guardText: _, ...options }: RenderOptions & GuardOptions,
): Set<number> {
  if (messages.every(({ reasoning }) => !reasoning)) return new Set();
  const marks = unusedMarks(messages, options);
  return new Set(hiddenIn(chat.renderText(messages.map(markThinking(marks)), options), messages, marks));
}

/** @param text a rendering of the messages with marks for their thinking */
const hiddenIn = (text: string, messages: readonly ChatMessage[], { thinking }: Marks) =>
  messages.flatMap(({ reasoning }, index) => (reasoning && !text.includes(thinking(index)) ? [index] : []));

const markThinking =
  ({ thinking }: Marks) =>
  (message: ChatMessage, index: number): ChatMessage =>
    message.reasoning ? { ...message, reasoning: thinking(index) } : message;

/** Without content, since some templates write it after the results of the calls. */
const markCalls = (message: ChatMessage, reply: string): ChatMessage => ({
  ...message,
  content: "",
  toolCalls: message.toolCalls?.map(({ argumentsText: _, ...call }) => ({ ...call, arguments: { [reply]: "" } })),
});

const markReply = (message: ChatMessage, reply: string): ChatMessage => ({
  ...markCalls(message, reply),
  content: reply,
});

/** A reply's text as its client gets it: without the stop string and everything after it. */
export function cutAtStop(text: string, stops: readonly string[] = []): string {
  let end = text.length;
  for (const stop of stops) {
    const at = stop === "" ? -1 : text.indexOf(stop);
    if (at >= 0) end = Math.min(end, at);
  }
  return text.slice(0, end);
}

// One agent's conversations as append-only tokens. The prompt of a call that continues an earlier one is that call's
// prompt, its sampled tokens, and the bridge to the next turn. If that is impossible, the whole conversation is rendered.

export interface CallOptions extends Pick<RenderOptions, "tools" | "thinking" | "reasoningEffort"> {
  /** Strings that end the reply; the client may have received the reply without them. */
  stop?: readonly string[];
}

/**
 * Why a model call's prompt starts a new token sequence instead of continuing an earlier one:
 * - `new_conversation`: it contains no earlier reply of this agent's model
 * - `compacted`: so does this one, but it quotes a reply as the summary of what it leaves out (the gateway recognizes it)
 * - `branched`: it continues a call that another call already continued
 * - `history_rewritten`: it contains earlier replies, but changed, or after other messages
 * - `tools_changed`, `options_changed`: the history is the same, but the tools or the thinking options are not
 * - `reasoning_dropped`: the template drops earlier thinking (see `accumulate_reasoning`)
 * - `not_continuable`: the template does not mark the end of the reply
 * - `raw_prompt`: the prompt is text or tokens (`/v1/completions`) that do not begin with an earlier call's tokens
 */
export type SequenceStart =
  | "new_conversation"
  | "compacted"
  | "branched"
  | "history_rewritten"
  | "tools_changed"
  | "options_changed"
  | "reasoning_dropped"
  | "not_continuable"
  | "raw_prompt";

/** One pending model call. */
export interface Turn {
  /** `[P]` the prompt. */
  readonly prompt: Int32Array;
  /** The images within the prompt; absent if it has none. */
  readonly media?: readonly Media[];
  /** How many control tokens in the text that the turn adds became ordinary tokens; absent if none. */
  readonly textMarks?: number;
  /** Why the prompt does not continue an earlier call's tokens; undefined if it does. */
  readonly starts: SequenceStart | undefined;
  /** Records the sampled tokens, so that later calls can continue them, and returns the parsed reply. */
  record(sample: { tokens: Int32Array }): ParsedReply;
}

export interface Conversation {
  /**
   * @param messages the whole history, as in chat APIs
   * @param images of the messages, as `prepareImages` returns them with the messages; undefined for a model that reads only text
   * @throws UserError if a message has neither text nor prepared images, or the template refuses the messages or the tools
   */
  begin(messages: readonly ChatMessage[], options?: CallOptions, images?: PromptImages): Turn;
  /**
   * `begin`, with long texts encoded on another thread.
   * @throws TextTooLong for a prompt of more than `maxPromptTokens`; the signal's reason if aborted
   */
  beginLater(
    messages: readonly ChatMessage[],
    options?: CallOptions,
    later?: LaterOptions & { images?: PromptImages | undefined },
  ): Promise<Turn>;
}

interface Recorded {
  /** The last one is the reply. */
  messages: readonly RecordedMessage[];
  /** Indices of messages whose thinking the template dropped, so that the tokens do not contain it. */
  hidden: ReadonlySet<number>;
  tools: string;
  options: string;
  prompt: Int32Array;
  media: readonly Media[];
  sampled: Int32Array;
  continued: boolean;
}

/**
 * @example
 * const conversation = openConversation(chat);
 * const first = conversation.begin([{ role: "user", content: "2 + 2?" }]);
 * const reply = first.record(await sample(first.prompt));
 * const second = conversation.begin([{ role: "user", content: "2 + 2?" }, toMessage(reply), { role: "user", content: "why?" }]);
 * // second.prompt begins with first.prompt and the sampled tokens
 *
 * @param given.guardText `false` for rows that are trained as transformers encodes them
 */
export function openConversation(chat: Chat, { guardText = chat.guardsText } = {}): Conversation {
  const recorded: Recorded[] = [];
  let turns = 0;

  /** Prepares a turn; `toTurn` finishes it with the tokens of the text that the turn adds. */
  function open(messages: readonly ChatMessage[], options: CallOptions, images: PromptImages | undefined) {
    requireContent(messages, images);
    const turn = turns++;
    const draft = nextPrompt(chat, recorded, messages, { ...options, guardText });
    const { starts, history, hidden } = draft;
    const toTurn = (rendered: Int32Array, textMarks: number): Turn => {
      const added = images ? placeImages(rendered, imagesOf(draft.added), images) : { tokens: rendered, media: [] };
      const { tokens: prompt, media } = draft.continues ? continued(draft.continues, added, chat) : added;
      return {
        prompt,
        ...(media.length > 0 ? { media } : {}),
        ...(textMarks > 0 ? { textMarks } : {}),
        starts,
        record({ tokens }) {
          const reply = chat.parse(tokens, { ...options, callId: (index) => callId(turn, index) });
          recorded.push({
            messages: [...history, toRecorded(reply, options.stop)],
            hidden,
            tools: sortedJson(options.tools ?? []),
            options: optionsKey(options),
            prompt,
            media,
            sampled: tokens.slice(),
            continued: false,
          });
          if (recorded.length > maxRemembered) recorded.shift();
          return reply;
        },
      };
    };
    return { draft, toTurn };
  }

  return {
    begin(messages, options = {}, images = undefined) {
      const { draft, toTurn } = open(messages, options, images);
      const { continues, history } = draft;
      const { count, onTextMarks } = countMarks();
      const { seam } = continues ?? {};
      const tokens = continues
        ? chat.encode(continues.text, { seam, onTextMarks })
        : chat.render(history, { ...options, guardText, onTextMarks });
      return toTurn(tokens, count());
    },
    async beginLater(messages, options = {}, { images, ...later } = {}) {
      const { draft, toTurn } = open(messages, options, images);
      const { continues, history } = draft;
      const { count, onTextMarks } = countMarks();
      const { seam } = continues ?? {};
      const tokens = await (continues
        ? chat.encodeLater(continues.text, { ...later, seam, onTextMarks })
        : chat.renderLater(history, { ...options, ...later, guardText, onTextMarks }));
      return toTurn(tokens, count());
    },
  };
}

function countMarks() {
  let marks = 0;
  return {
    count: () => marks,
    onTextMarks: (found: number) => {
      marks += found;
    },
  };
}

/**
 * Number of calls that can be continued. In an endless conversation (a gateway's default session) the oldest are dropped;
 * continuing a dropped one starts a new sequence, which is equally exact.
 */
const maxRemembered = 256;

/** Without this check a template would write "None", or a list with its brackets, into the prompt. */
function requireContent(messages: readonly ChatMessage[], images: PromptImages | undefined): void {
  for (const [index, { role, content }] of messages.entries()) {
    if (typeof content === "string" || (images && Array.isArray(content) && hasImages(content))) continue;
    const given = Array.isArray(content) ? "a list" : content;
    throw new UserError(`message ${index + 1} (${role}) has ${given} as content`, {
      hint: 'content must be text, or parts with images for a vision-language model; for an assistant message with only tool calls, ""',
    });
  }
}

/** A prompt before its text is encoded. */
interface Draft {
  /** The call whose tokens it begins with, and the text after them. If absent, the whole history is rendered. */
  continues?: { call: Recorded; text: string; seam: string | undefined; hasTurnEnd: boolean };
  starts: SequenceStart | undefined;
  /** The messages; recorded ones replace a client's copies. */
  history: readonly ChatMessage[];
  /** The messages that are rendered: those after the call that is continued, or all. */
  added: readonly ChatMessage[];
  hidden: ReadonlySet<number>;
}

function nextPrompt(
  chat: Chat,
  recorded: readonly Recorded[],
  messages: readonly ChatMessage[],
  options: CallOptions & GuardOptions,
): Draft {
  const tools = sortedJson(options.tools ?? []);
  const thinking = optionsKey(options);
  const whole = (starts: SequenceStart, all = messages): Draft => ({
    starts,
    history: all,
    added: all,
    hidden: hiddenThinking(chat, all, options),
  });

  // Every recorded call ends with a reply, so messages without a reply continue none of them.
  if (!messages.some(({ role }) => role === "assistant")) return whole("new_conversation");
  const matches = longestMatches(recorded, messages);
  const same = matches.find(({ call }) => call.tools === tools && call.options === thinking);
  if (same === undefined) {
    if (matches[0]) return whole(matches[0].call.tools === tools ? "options_changed" : "tools_changed");
    return whole(usesRecordedReply(recorded, messages) ? "history_rewritten" : "new_conversation");
  }

  const { call, callIds } = same;
  const next = messages.slice(call.messages.length).map((message) => withId(message, callIds));
  const all = [...call.messages, ...next];
  const between = bridge(chat, call.messages, call.hidden, next, options);
  const branch = call.continued ? branchCause(next) : undefined;
  call.continued = true;
  if (between === null) return whole("not_continuable");
  if (between.dropsReasoning && !chat.accumulateReasoning) {
    return whole(branch === "history_rewritten" ? branch : "reasoning_dropped", all);
  }
  const { text, seam, hasTurnEnd, hidden } = between;
  return { continues: { call, text, seam, hasTurnEnd }, starts: branch, history: all, added: next, hidden };
}

/** @param added the text's tokens */
function continued(
  { call, hasTurnEnd }: NonNullable<Draft["continues"]>,
  added: PlacedImages,
  chat: Chat,
): PlacedImages {
  const ended = hasTurnEnd && hasWritten(call.sampled.at(-1) ?? -1, added.tokens[0] ?? -1, chat) ? 1 : 0;
  const seen = call.prompt.length;
  const moved = seen + call.sampled.length - ended;
  const prompt = concatenate(Int32Array, [call.prompt, call.sampled, added.tokens.subarray(ended)]);
  // The new prompt contains the old tokens, so a long conversation shares their memory.
  call.sampled = prompt.subarray(seen, seen + call.sampled.length);
  call.prompt = prompt.subarray(0, seen);
  return {
    tokens: prompt,
    media: [...call.media, ...added.media.map((image) => ({ ...image, at: image.at + moved }))],
  };
}

/**
 * Whether the model itself wrote the end with which the added text begins. It may be another token with the same meaning, unless
 * the token is the header of the next turn, where each has its own.
 */
function hasWritten(last: number, first: number, { stopIds, sharedStopIds }: Chat): boolean {
  if (!stopIds.includes(last)) return false;
  return last === first || !(sharedStopIds.includes(last) || sharedStopIds.includes(first));
}

interface Match {
  call: Recorded;
  /** The recorded id of each tool call in the messages. */
  callIds: Map<string, string>;
}

/**
 * The calls with the longest history that the messages begin with, best match first. Equal replies to one prompt are
 * distinguished by the ids of their tool calls, then calls that were not continued come first.
 */
function longestMatches(recorded: readonly Recorded[], messages: readonly ChatMessage[]): Match[] {
  const renamed = ({ callIds }: Match) => [...callIds].filter(([given, own]) => given !== own).length;
  let found: Match[] = [];
  let longest = 1;
  for (const call of recorded) {
    if (call.messages.length < longest || call.messages.length > messages.length) continue;
    const { matched, callIds } = matchHistory(call.messages, messages);
    if (matched < call.messages.length) continue;
    if (matched > longest) found = [];
    longest = matched;
    found.push({ call, callIds });
  }
  return found.sort(
    (left, right) => renamed(left) - renamed(right) || Number(left.call.continued) - Number(right.call.continued),
  );
}

/** Why a second continuation of a call starts a new sequence: it asks another question, or changes a later reply. */
const branchCause = (next: readonly ChatMessage[]): SequenceStart =>
  next.some(({ role }) => role === "assistant") ? "history_rewritten" : "branched";

/** Whether the messages contain a recorded reply, or replace one. */
function usesRecordedReply(recorded: readonly Recorded[], messages: readonly ChatMessage[]): boolean {
  return recorded.some((call) => {
    const reply = call.messages.at(-1);
    if (reply && messages.some((message) => sameMessage(reply, message, new Map()))) return true;
    const { matched } = matchHistory(call.messages, messages);
    return matched === call.messages.length - 1 && messages[matched]?.role === "assistant";
  });
}

function withId(message: ChatMessage, callIds: ReadonlyMap<string, string>): ChatMessage {
  const toolCallId = translated(message.toolCallId, callIds);
  return toolCallId === undefined ? message : { ...message, toolCallId };
}

const optionsKey = ({ thinking, reasoningEffort }: CallOptions) => JSON.stringify([thinking, reasoningEffort]);

function toRecorded(reply: ParsedReply, stops: readonly string[] | undefined): RecordedMessage {
  const shown = cutAtStop(reply.content, stops);
  return shown === reply.content ? toMessage(reply) : { ...toMessage(reply), shown };
}

/** Nine letters and digits, as the strictest template (Mistral's) requires; the same in a repeated run. */
const callId = (turn: number, index: number) => `call${(turn * 100 + index).toString(36).padStart(5, "0")}`;
