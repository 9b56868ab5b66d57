/**
 * Compares a client's copy of the history with the recorded history. Clients may serialize tool arguments again, fill in
 * defaults, drop thinking, or write null for empty content; these differences are ignored.
 */
import { isDeepStrictEqual } from "node:util";
import { isObject } from "../../is-object.ts";
import { sameContent, textOf } from "../images/content.ts";
import type { ChatMessage, ToolCall } from "../messages.ts";

/** A recorded message. `shown` is the part of a reply that the client received, if it was cut: see `cutAtStop`. */
export interface RecordedMessage extends ChatMessage {
  shown?: string;
}

/** @returns the number of recorded messages that the given ones begin with, and the recorded id of each given call */
export function matchHistory(
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
export function sameMessage(recorded: RecordedMessage, given: ChatMessage, callIds: Map<string, string>): boolean {
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

export const translated = (id: string | undefined, callIds: ReadonlyMap<string, string>) =>
  id === undefined ? undefined : (callIds.get(id) ?? id);
