/** A chat whose tokens are characters, so that tests can read tokens without a tokenizer file. */
import { assembleChat } from "../chat/assemble-chat.ts";
import { thinkTags } from "../chat/formats/format.ts";
import { hermes } from "../chat/formats/hermes.ts";
import type { ChatMessage, TextMessage } from "../chat/messages.ts";
import { toTemplateTool } from "../chat/templates/template-messages.ts";
import type { Chat, RenderOptions } from "../chat/types.ts";
import { UserError } from "../errors.ts";

/** Stands for an image: Unicode's object replacement character. */
export const imageCharacter = "\uFFFC";

const roles = ["system", "user", "assistant", "tool"] as const;
/** Ids 0 to 4: the end of a turn, which is also the end of text, and the headers of the four roles. */
const specials = ["<|end|>", ...roles.map((role) => `<|${role}|>`)];
const escaped = (text: string) => text.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");
/** Stands for the characters that are not in the alphabet, if the alphabet contains it. */
const unknown = "\uFFFD";

/** A chat that needs no tokenizer's files. */
export interface CharacterChat extends Chat {
  readonly eosId: number;
  readonly vocabularySize: number;
  /** The messages of a rendered prompt, without the generation prompt. */
  messagesOf(tokens: ArrayLike<number>): TextMessage[];
}

/**
 * A conversation is rendered as `<|user|>hello<|end|><|assistant|>`; each mark and each character is a token. Tools are
 * offered in a system message at the beginning, thinking is in `<think>`, tool calls are JSON in `<tool_call>`.
 *
 * @param alphabet the characters of a small vocabulary, or a list that may also contain whole replies, each of which is one
 * token; by default every Unicode character is a token. Characters that are not in it are read as U+FFFD if that is
 */
export function characterChat(alphabet?: Iterable<string>): CharacterChat {
  const characters = alphabet === undefined ? undefined : [...new Set(alphabet)];
  const longer = (characters ?? []).filter((piece) => [...piece].length > 1).sort((a, b) => b.length - a.length);
  const pieces = new RegExp([...specials, ...longer].map(escaped).concat("[^]").join("|"), "gu");
  const ids = new Map([...specials, ...(characters ?? [])].map((piece, id) => [piece, id]));

  function toId(piece: string): number {
    const id =
      ids.get(piece) ?? ids.get(unknown) ?? (characters ? undefined : specials.length + (piece.codePointAt(0) ?? 0));
    if (id !== undefined) return id;
    throw new UserError(`the character ${JSON.stringify(piece)} is not in the alphabet ${JSON.stringify(alphabet)}`);
  }
  function toPiece(id: number): string {
    const index = id - specials.length;
    if (index < 0) return specials[id] ?? "";
    if (characters) return characters[index] ?? "";
    return index <= 0x10ffff ? String.fromCodePoint(index) : "";
  }
  const encode = (text: string) => Int32Array.from(text.match(pieces) ?? [], toId);
  const decode: Chat["decode"] = (tokens, { skipSpecial = false } = {}) =>
    Array.from(tokens, (id) => (skipSpecial && id < specials.length ? "" : toPiece(id))).join("");
  return {
    ...assembleChat({
      encode,
      decode,
      renderText,
      specials,
      format: { thinking: thinkTags, calls: hermes },
      ids: { bos: null, eos: 0, pad: null },
    }),
    eosId: 0,
    vocabularySize: specials.length + (characters?.length ?? 0x110000),
    messagesOf(tokens) {
      const messages: TextMessage[] = [];
      let open: TextMessage | undefined;
      for (const id of Array.from(tokens)) {
        const role = roles[id - 1];
        if (role) open = { role, content: "" };
        else if (id === 0 && open) {
          messages.push(open);
          open = undefined;
        } else if (open) open.content += toPiece(id);
      }
      return messages;
    },
  };
}

function renderText(
  messages: readonly ChatMessage[],
  { tools = [], addGenerationPrompt = true }: RenderOptions,
): string {
  const offered = tools.length > 0 ? `<|system|>tools: ${JSON.stringify(tools.map(toTemplateTool))}<|end|>` : "";
  const written = messages.map((message) => `<|${message.role}|>${contentOf(message)}<|end|>`).join("");
  return offered + written + (addGenerationPrompt ? "<|assistant|>" : "");
}

function contentOf({ content, reasoning, toolCalls = [] }: ChatMessage): string {
  const thinking = reasoning ? `<think>${reasoning}</think>` : "";
  const calls = toolCalls.map(
    ({ name, arguments: given }) => `<tool_call>${JSON.stringify({ name, arguments: given })}</tool_call>`,
  );
  const parts =
    typeof content === "string"
      ? [content]
      : content.map((part) => (part.type === "text" ? part.text : imageCharacter));
  return thinking + parts.join("") + calls.join("");
}
