/**
 * One agent's conversations as tokens that only grow. The prompt of a call that takes an earlier one up is that
 * call's prompt, its sampled tokens, and the bridge to the next turn; only where that cannot be is it rendered whole.
 */
import { UserError } from "../errors.ts";
import { bridge, hiddenThinking } from "./bridge.ts";
import { cutAtStop } from "./cut-at-stop.ts";
import { type ChatMessage, type ParsedReply, type ToolDefinition, toMessage } from "./messages.ts";
import { matchHistory, type RecordedMessage, sameMessage, translated } from "./same-message.ts";
import type { Chat, LaterOptions, RenderOptions } from "./types.ts";

export interface CallOptions extends Pick<RenderOptions, "tools" | "thinking" | "reasoningEffort"> {
  /** Strings that end the reply; who asked may have been given it without them. */
  stop?: readonly string[];
}

/**
 * Why a model call's prompt begins a token sequence of its own instead of continuing an earlier one:
 * - `new_conversation`: it takes up nothing that this agent's model has said before
 * - `branched`: it continues a call that another call has continued already
 * - `history_rewritten`: it takes earlier replies up, but not as they were said, or after other messages
 * - `tools_changed`, `options_changed`: the history is the same, the tools or the way of thinking are not
 * - `reasoning_dropped`: the template leaves earlier thinking out (see `accumulate_reasoning`)
 * - `not_continuable`: the template shows no place after the reply where the next turn could begin
 * - `raw_prompt`: the prompt was given as text or tokens (`/v1/completions`), and not with an earlier call's tokens
 */
export type SequenceStart =
  | "new_conversation"
  | "branched"
  | "history_rewritten"
  | "tools_changed"
  | "options_changed"
  | "reasoning_dropped"
  | "not_continuable"
  | "raw_prompt";

/** One model call under way. */
export interface Turn {
  /** `[P]` what the model is to see. */
  readonly prompt: Int32Array;
  /** Why the prompt does not continue an earlier call's tokens; undefined when it does. */
  readonly starts: SequenceStart | undefined;
  /** To be called with what was sampled, so that later calls can continue it. Gives the reply taken apart. */
  record(sample: { tokens: Int32Array }): ParsedReply;
}

export interface Conversation {
  /**
   * @param messages the whole history, as chat APIs want it
   * @throws UserError when a message's content is no text, or the template refuses the messages or the tools
   */
  begin(messages: readonly ChatMessage[], options?: CallOptions): Turn;
  /**
   * `begin`, with what is long encoded on another thread.
   * @throws TextTooLong for a prompt of more than `mostTokens`; the signal's reason when aborted
   */
  beginLater(messages: readonly ChatMessage[], options?: CallOptions, later?: LaterOptions): Promise<Turn>;
}

interface Recorded {
  /** The reply last. */
  messages: readonly RecordedMessage[];
  /** Which messages' thinking the tokens do not hold, since the template left it out. */
  hidden: ReadonlySet<number>;
  tools: string;
  options: string;
  prompt: Int32Array;
  sampled: Int32Array;
  continued: boolean;
}

/**
 * @example
 * const conversation = openConversation(chat);
 * const first = conversation.begin([{ role: "user", content: "2 + 2?" }]);
 * const reply = first.record(await sample(first.prompt));
 * const second = conversation.begin([{ role: "user", content: "2 + 2?" }, toMessage(reply), { role: "user", content: "why?" }]);
 * // second.prompt begins with first.prompt and what was sampled
 */
export function openConversation(chat: Chat): Conversation {
  const recorded: Recorded[] = [];
  let turns = 0;

  /** What is left to do once the text that the turn adds is encoded. */
  function open(messages: readonly ChatMessage[], options: CallOptions) {
    requireText(messages);
    const turn = turns++;
    const draft = nextPrompt(chat, recorded, messages, options);
    const { starts, history, hidden } = draft;
    const toTurn = (added: Int32Array): Turn => {
      const prompt = draft.continues ? continued(draft.continues, added, chat.stopIds) : added;
      return {
        prompt,
        starts,
        record({ tokens }) {
          const reply = chat.parse(tokens, { ...options, callId: (index) => callId(turn, index) });
          recorded.push({
            messages: [...history, toRecorded(reply, options.stop)],
            hidden,
            tools: toolsKey(options.tools),
            options: optionsKey(options),
            prompt,
            sampled: tokens.slice(),
            continued: false,
          });
          if (recorded.length > mostRemembered) recorded.shift();
          return reply;
        },
      };
    };
    return { draft, toTurn };
  }

  return {
    begin(messages, options = {}) {
      const { draft, toTurn } = open(messages, options);
      return toTurn(draft.continues ? chat.encode(draft.continues.text) : chat.render(draft.history, options));
    },
    async beginLater(messages, options = {}, later = {}) {
      const { draft, toTurn } = open(messages, options);
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
 * Calls that can be continued; of a conversation without end (a gateway's default session) the oldest are forgotten. To
 * go on from a forgotten one begins a new sequence, which is as exact.
 */
const mostRemembered = 256;

/** Checked here because a template would write "None" or a list's brackets for the model to read. */
function requireText(messages: readonly ChatMessage[]): void {
  const at = messages.findIndex(({ content }) => typeof content !== "string");
  if (at < 0) return;
  const { role, content } = messages[at]!;
  throw new UserError(`message ${at + 1} (${role}) has ${Array.isArray(content) ? "a list" : content} for content`, {
    hint: 'content is text here; images are not, and an assistant that only calls tools says ""',
  });
}

/** A prompt before its text is encoded. */
interface Draft {
  /** The call whose tokens it begins with, and the text after those. Without it the whole history is rendered. */
  continues?: { call: Recorded; text: string; hasTurnEnd: boolean };
  starts: SequenceStart | undefined;
  /** The messages, with what was recorded of them in place of a client's copy. */
  history: readonly ChatMessage[];
  hidden: ReadonlySet<number>;
}

function nextPrompt(
  chat: Chat,
  recorded: readonly Recorded[],
  messages: readonly ChatMessage[],
  options: CallOptions,
): Draft {
  const tools = toolsKey(options.tools);
  const thinking = optionsKey(options);
  const whole = (starts: SequenceStart, all = messages): Draft => ({
    starts,
    history: all,
    hidden: hiddenThinking(chat, all, options),
  });

  // Every recorded call ends with a reply: where there is none yet, nothing is taken up.
  if (!messages.some(({ role }) => role === "assistant")) return whole("new_conversation");
  const matches = longestMatches(recorded, messages);
  const same = matches.find(({ call }) => call.tools === tools && call.options === thinking);
  if (same === undefined) {
    if (matches[0]) return whole(matches[0].call.tools === tools ? "options_changed" : "tools_changed");
    return whole(takesUp(recorded, messages) ? "history_rewritten" : "new_conversation");
  }

  const { call, callIds } = same;
  const next = messages.slice(call.messages.length).map((message) => withId(message, callIds));
  const all = [...call.messages, ...next];
  const between = bridge(chat, call.messages, call.hidden, next, options);
  const otherWay = call.continued ? wayOf(next) : undefined;
  call.continued = true;
  if (between === null) return whole("not_continuable");
  if (between.dropsReasoning && !chat.accumulateReasoning) {
    return whole(otherWay === "history_rewritten" ? otherWay : "reasoning_dropped", all);
  }
  const { text, hasTurnEnd, hidden } = between;
  return { continues: { call, text, hasTurnEnd }, starts: otherWay, history: all, hidden };
}

/** @param added the text's tokens */
function continued(
  { call, hasTurnEnd }: NonNullable<Draft["continues"]>,
  added: Int32Array,
  stopIds: Chat["stopIds"],
): Int32Array {
  const ended = hasTurnEnd && stopIds.includes(call.sampled.at(-1) ?? -1);
  const prompt = join(call.prompt, call.sampled, added.subarray(ended ? 1 : 0));
  // The new prompt holds the old tokens: a long conversation need not keep them twice.
  const seen = call.prompt.length;
  call.sampled = prompt.subarray(seen, seen + call.sampled.length);
  call.prompt = prompt.subarray(0, seen);
  return prompt;
}

interface Match {
  call: Recorded;
  /** The recorded ids of the calls that the messages name otherwise. */
  callIds: Map<string, string>;
}

/**
 * The calls with the longest history that the messages begin with, the likeliest first: equal replies to one prompt are
 * told apart by the ids of their calls, else the one that nobody has continued is meant.
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

/** A further way on from a call: another question, or another reply put in the place of the one that was sampled. */
const wayOf = (next: readonly ChatMessage[]): SequenceStart =>
  next.some(({ role }) => role === "assistant") ? "history_rewritten" : "branched";

/** Whether the messages hold a reply that was recorded, or put another in the place of one. */
function takesUp(recorded: readonly Recorded[], messages: readonly ChatMessage[]): boolean {
  return recorded.some((call) => {
    const reply = call.messages.at(-1)!;
    if (messages.some((message) => sameMessage(reply, message, new Map()))) return true;
    const { matched } = matchHistory(call.messages, messages);
    return matched === call.messages.length - 1 && messages[matched]?.role === "assistant";
  });
}

function withId(message: ChatMessage, callIds: ReadonlyMap<string, string>): ChatMessage {
  const toolCallId = translated(message.toolCallId, callIds);
  return toolCallId === undefined ? message : { ...message, toolCallId };
}

function join(...parts: readonly Int32Array[]): Int32Array {
  const joined = new Int32Array(parts.reduce((total, part) => total + part.length, 0));
  let position = 0;
  for (const part of parts) {
    joined.set(part, position);
    position += part.length;
  }
  return joined;
}

const optionsKey = ({ thinking, reasoningEffort }: CallOptions) => JSON.stringify([thinking, reasoningEffort]);

function toRecorded(reply: ParsedReply, stops: readonly string[] | undefined): RecordedMessage {
  const shown = cutAtStop(reply.content, stops);
  return shown === reply.content ? toMessage(reply) : { ...toMessage(reply), shown };
}

/** The order in which an object's keys were written does not matter. */
const toolsKey = (tools: readonly ToolDefinition[] = []) =>
  JSON.stringify(tools, (_, value: unknown) =>
    typeof value === "object" && value !== null && !Array.isArray(value)
      ? Object.fromEntries(Object.entries(value).sort(([left], [right]) => (left < right ? -1 : 1)))
      : value,
  );

/** Nine letters and digits, which is what the strictest template (Mistral's) takes; the same in a repeated run. */
const callId = (turn: number, index: number) => `call${(turn * 100 + index).toString(36).padStart(5, "0")}`;
