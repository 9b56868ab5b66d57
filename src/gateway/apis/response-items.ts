/** Reads the input items of OpenAI's responses API as a conversation. */
import { type ChatMessage, type ToolCall, toMessage } from "../../chat/messages.ts";
import { isObject } from "../../is-object.ts";
import type { Notices } from "../calls/model-call.ts";
import { type Body, badParameter } from "../requests/read-parameters.ts";
import { openaiContent, textOf } from "./content-parts.ts";
import { toolCall } from "./tools.ts";

interface AssistantTurn {
  reasoning: string;
  content: string | undefined;
  toolCalls: ToolCall[];
}

/**
 * Consecutive thinking, text and calls were one reply and become one message.
 * @throws GatewayError naming the item that cannot be read
 */
export function fromResponseItems(input: unknown, notices: Notices): ChatMessage[] {
  if (typeof input === "string") return [{ role: "user", content: input }];
  if (!Array.isArray(input) || input.length === 0) {
    throw badParameter("input", "input must be a string or a list of items");
  }
  const messages: ChatMessage[] = [];
  let turn: AssistantTurn | undefined;
  const end = () => {
    if (turn) messages.push(toMessage({ ...turn, content: turn.content ?? "" }));
    turn = undefined;
  };
  const current = (): AssistantTurn => {
    turn ??= { reasoning: "", content: undefined, toolCalls: [] };
    return turn;
  };
  /** Thinking and text come before calls, and a reply has one text. */
  const currentOrNext = (): AssistantTurn => {
    if (turn && (turn.content !== undefined || turn.toolCalls.length > 0)) end();
    return current();
  };

  for (const [index, item] of (input as unknown[]).entries()) {
    const at = `input[${index}]`;
    if (!isObject(item)) throw badParameter(at, `${at} must be an object`);
    switch (item.type ?? "message") {
      case "message": {
        const where = `${at}.content`;
        if (item.role === "assistant") currentOrNext().content = textOf(item.content, where);
        else {
          end();
          const role = roleOf(item, at);
          const content = role === "user" ? openaiContent(item.content, where, notices) : textOf(item.content, where);
          messages.push({ role, content });
        }
        break;
      }
      case "reasoning":
        currentOrNext().reasoning += thinkingOf(item, at);
        break;
      case "function_call":
        if (typeof item.call_id !== "string" || typeof item.name !== "string") {
          throw badParameter(at, `${at} must be a function call with call_id, name and arguments`);
        }
        current().toolCalls.push(toolCall(item.call_id, item.name, item.arguments, `${at}.arguments`));
        break;
      case "function_call_output":
        end();
        if (typeof item.call_id !== "string") throw badParameter(at, `${at}.call_id is missing`);
        messages.push({
          role: "tool",
          content: openaiContent(item.output, `${at}.output`, notices),
          toolCallId: item.call_id,
        });
        break;
      default:
        throw badParameter(at, `${at} is of type ${item.type}, which is not supported`);
    }
  }
  end();
  return messages;
}

function roleOf({ role }: Body, at: string): "system" | "user" {
  if (role === "user") return "user";
  if (role === "system" || role === "developer") return "system";
  const message = `${at}.role is ${JSON.stringify(role)}; it must be system, developer, user or assistant`;
  throw badParameter(`${at}.role`, message);
}

/** Thinking of open models is plain content. A summary or an encrypted text is not what the model thought. */
function thinkingOf({ content, encrypted_content: encrypted }: Body, at: string): string {
  if (encrypted) throw badParameter(at, `${at} is encrypted thinking, which cannot be read`);
  return textOf(content, `${at}.content`);
}
