/**
 * Whether a client's copy of the history is the history that was recorded. Clients write tool calls back with their
 * arguments serialised anew, fill in defaults, drop thinking, write null for no content: that is the same history.
 */
import { isDeepStrictEqual } from "node:util";
import type { ChatMessage, ToolCall } from "./messages.ts";

/** A recorded message, or a reply with what its client was shown of it where that is less: see `cutAtStop`. */
export interface RecordedMessage extends ChatMessage {
  shown?: string;
}

/**
 * @returns how many of the recorded messages the given ones begin with, and by which ids the given ones name the
 * recorded calls
 */
export function matchHistory(
  recorded: readonly RecordedMessage[],
  given: readonly ChatMessage[],
): { matched: number; callIds: Map<string, string> } {
  const callIds = new Map<string, string>();
  let matched = 0;
  while (matched < recorded.length && matched < given.length) {
    if (!sameMessage(recorded[matched]!, given[matched]!, callIds)) break;
    matched++;
  }
  return { matched, callIds };
}

/** @param callIds filled with the recorded id of each given call */
export function sameMessage(recorded: RecordedMessage, given: ChatMessage, callIds: Map<string, string>): boolean {
  if (recorded.role !== given.role) return false;
  if (recorded.role === "assistant") return sameReply(recorded, given, callIds);
  if (recorded.content !== given.content) return false;
  return recorded.role !== "tool" || recorded.toolCallId === translated(given.toolCallId, callIds);
}

function sameReply(recorded: RecordedMessage, given: ChatMessage, callIds: Map<string, string>): boolean {
  const calls = recorded.toolCalls ?? [];
  const back = given.toolCalls ?? [];
  if (calls.length !== back.length || !calls.every((call, index) => sameCall(call, back[index]!))) return false;
  const content = given.content.trim();
  const said = [recorded.content, recorded.shown ?? recorded.content].map((text) => text.trim());
  // Beside tool calls, text is often left out.
  if (!said.includes(content) && !(content === "" && calls.length > 0)) return false;
  if (given.reasoning && given.reasoning.trim() !== (recorded.reasoning ?? "").trim()) return false;
  calls.forEach((call, index) => {
    callIds.set(back[index]!.id, call.id);
  });
  return true;
}

/** A call that kept its id may have gained defaults and lost keys that its schema does not know; a changed value is a change. */
function sameCall(recorded: ToolCall, given: ToolCall): boolean {
  if (recorded.name !== given.name) return false;
  if (recorded.id === given.id) return agree(recorded.arguments, given.arguments);
  return isDeepStrictEqual(recorded.arguments, given.arguments);
}

function agree(left: unknown, right: unknown): boolean {
  if (!isRecord(left) || !isRecord(right)) {
    if (Array.isArray(left) && Array.isArray(right)) {
      return left.length === right.length && left.every((value, index) => agree(value, right[index]));
    }
    return isDeepStrictEqual(left, right);
  }
  return Object.entries(left).every(([key, value]) => !Object.hasOwn(right, key) || agree(value, right[key]));
}

const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

export const translated = (id: string | undefined, callIds: ReadonlyMap<string, string>) =>
  id === undefined ? undefined : (callIds.get(id) ?? id);
