/**
 * Tells an agent's own conversation from the other calls of its program: titles and summaries, which offer no tools, and
 * subagents, which have another system prompt or other tools. An agent that never offers tools has only its own calls.
 */
import { textOf } from "../../chat/images/content.ts";
import type { ChatMessage, ParsedReply, ToolDefinition } from "../../chat/messages.ts";
import type { GenerateRequest } from "../../rollout/session/types.ts";
import { sideRoles } from "../../trajectories/types.ts";

export interface SideCalls {
  /** @returns the role of a call; undefined: the agent's own */
  classify(messages: readonly ChatMessage[], tools: readonly ToolDefinition[]): Classified;
  /** Call it with each reply and the role of its call. */
  answered(role: string | undefined, reply: ParsedReply): void;
}

/** With the fields of `GenerateRequest`. */
type Classified = { role?: string } & Pick<GenerateRequest, "compacted" | "presumedSide">;

/** Shorter replies may be in a prompt by chance. In characters. */
const shortestSummary = 40;

export function createSideCalls(): SideCalls {
  /** The system prompt and the tools of the agent's own first call. */
  let own: string | undefined;
  const ownReplies = new Set<string>();
  /** Texts of all replies, which may be summaries, and whether a side call gave them. */
  const texts = new Map<string, boolean>();

  return {
    classify(messages, tools) {
      if (tools.length === 0) return { role: sideRoles.side, presumedSide: true };
      const replies = messages.filter(({ role }) => role === "assistant").map(signature);
      const continues = replies.some((reply) => ownReplies.has(reply));
      const identity = identityOf(messages, tools);
      own ??= identity;
      if (!continues && identity !== own) return { role: sideRoles.subagent };
      if (continues || ownReplies.size === 0) return {};
      // A reply of the agent's own among the replies is no summary: its calls were changed.
      const quotes = [...texts].some(([text, isSide]) =>
        messages.some(({ role, content }) => (isSide || role !== "assistant") && textOf(content).includes(text)),
      );
      return quotes ? { compacted: true } : {};
    },
    answered(role, reply) {
      if (role === undefined) ownReplies.add(signature(reply));
      const text = reply.content.trim();
      if (text.length >= shortestSummary) texts.set(text, role !== undefined);
    },
  };
}

const signature = ({ content, toolCalls = [] }: Pick<ChatMessage, "content" | "toolCalls">) =>
  JSON.stringify([textOf(content).trim(), toolCalls.map((call) => [call.name, call.arguments])]);

function identityOf(messages: readonly ChatMessage[], tools: readonly ToolDefinition[]): string {
  const [first] = messages;
  return JSON.stringify([first?.role === "system" ? textOf(first.content) : "", tools.map(({ name }) => name).sort()]);
}
