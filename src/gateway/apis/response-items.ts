/** The input items of OpenAI's responses API as a conversation. */
import type { ChatMessage, ToolCall } from "../../chat/messages.ts";
import { type Body, badParameter, isObject } from "../read-parameters.ts";
import { textOf, toolCall } from "./openai-messages.ts";

interface AssistantTurn {
  reasoning: string;
  content: string | undefined;
  toolCalls: ToolCall[];
}

/**
 * Thinking, text and calls that follow each other were one reply and become one message again.
 * @throws GatewayError naming the item that cannot be read
 */
export function fromResponseItems(input: unknown): ChatMessage[] {
  if (typeof input === "string") return [{ role: "user", content: input }];
  if (!Array.isArray(input) || input.length === 0)
    throw badParameter("input", "input must be a string or a list of items");
  const messages: ChatMessage[] = [];
  let turn: AssistantTurn | undefined;
  const end = () => {
    if (turn === undefined) return;
    messages.push({
      role: "assistant",
      content: turn.content ?? "",
      ...(turn.reasoning === "" ? {} : { reasoning: turn.reasoning }),
      ...(turn.toolCalls.length === 0 ? {} : { toolCalls: turn.toolCalls }),
    });
    turn = undefined;
  };
  const inTurn = (startsAnother: (turn: AssistantTurn) => boolean): AssistantTurn => {
    if (turn !== undefined && startsAnother(turn)) end();
    turn ??= { reasoning: "", content: undefined, toolCalls: [] };
    return turn;
  };

  for (const [index, item] of (input as unknown[]).entries()) {
    const at = `input[${index}]`;
    if (!isObject(item)) throw badParameter(at, `${at} must be an object`);
    switch (item.type ?? "message") {
      case "message":
        if (item.role === "assistant") {
          inTurn(({ content, toolCalls }) => content !== undefined || toolCalls.length > 0).content = textOf(
            item.content,
            `${at}.content`,
          );
        } else {
          end();
          messages.push({ role: roleOf(item, at), content: textOf(item.content, `${at}.content`) });
        }
        break;
      case "reasoning":
        inTurn(({ content, toolCalls }) => content !== undefined || toolCalls.length > 0).reasoning += thinkingOf(
          item,
          at,
        );
        break;
      case "function_call":
        if (typeof item.call_id !== "string" || typeof item.name !== "string") {
          throw badParameter(at, `${at} must be a function call with call_id, name and arguments`);
        }
        inTurn(() => false).toolCalls.push(toolCall(item.call_id, item.name, item.arguments, `${at}.arguments`));
        break;
      case "function_call_output":
        end();
        if (typeof item.call_id !== "string") throw badParameter(at, `${at} names no call_id`);
        messages.push({ role: "tool", content: textOf(item.output, `${at}.output`), toolCallId: item.call_id });
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
  throw badParameter(
    `${at}.role`,
    `${at}.role is ${JSON.stringify(role)}; it must be system, developer, user or assistant`,
  );
}

/** Open models' thinking is plain content; a summary or an encrypted text is not what the model thought. */
function thinkingOf({ content, encrypted_content: encrypted }: Body, at: string): string {
  if (encrypted) throw badParameter(at, `${at} is encrypted thinking, which cannot be read`);
  return textOf(content, `${at}.content`);
}
