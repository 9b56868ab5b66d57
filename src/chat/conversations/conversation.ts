/**
 * One agent's conversations as append-only tokens. The prompt of a call that continues an earlier one is that call's
 * prompt, its sampled tokens, and the bridge to the next turn. If that is impossible, the whole conversation is rendered.
 */
import { concatenate } from "../../concatenate.ts";
import { UserError } from "../../errors.ts";
import type { Media } from "../../images/types.ts";
import { sortedJson } from "../../sorted-json.ts";
import { hasImages, imagesOf } from "../images/content.ts";
import { type PlacedImages, type PromptImages, placeImages } from "../images/place-images.ts";
import { type ChatMessage, type ParsedReply, toMessage } from "../messages.ts";
import type { Chat, LaterOptions, RenderOptions } from "../types.ts";
import { bridge, cutAtStop, hiddenThinking } from "./bridge.ts";
import { matchHistory, type RecordedMessage, sameMessage, translated } from "./same-message.ts";

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
 */
export function openConversation(chat: Chat): Conversation {
  const recorded: Recorded[] = [];
  let turns = 0;

  /** Prepares a turn; `toTurn` finishes it with the tokens of the text that the turn adds. */
  function open(messages: readonly ChatMessage[], options: CallOptions, images: PromptImages | undefined) {
    requireContent(messages, images);
    const turn = turns++;
    const draft = nextPrompt(chat, recorded, messages, options);
    const { starts, history, hidden } = draft;
    const toTurn = (rendered: Int32Array): Turn => {
      const added = images ? placeImages(rendered, imagesOf(draft.added), images) : { tokens: rendered, media: [] };
      const { tokens: prompt, media } = draft.continues ? continued(draft.continues, added, chat) : added;
      return {
        prompt,
        ...(media.length > 0 ? { media } : {}),
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
      return toTurn(draft.continues ? chat.encode(draft.continues.text) : chat.render(draft.history, options));
    },
    async beginLater(messages, options = {}, { images, ...later } = {}) {
      const { draft, toTurn } = open(messages, options, images);
      const { continues, history } = draft;
      return toTurn(
        await (continues
          ? chat.encodeLater(continues.text, later)
          : chat.renderLater(history, { ...options, ...later })),
      );
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
  continues?: { call: Recorded; text: string; hasTurnEnd: boolean };
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
  options: CallOptions,
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
  const { text, hasTurnEnd, hidden } = between;
  return { continues: { call, text, hasTurnEnd }, starts: branch, history: all, added: next, hidden };
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
