/** Conversations as rows of `messages` and `tools` in OpenAI's form, for supervised fine-tuning. */
import { isDeepStrictEqual } from "node:util";
import { imagesOf, textOf } from "../../chat/images/content.ts";
import type { ChatMessage, Content, ToolDefinition } from "../../chat/messages.ts";
import { isClientImage, isStored } from "../../images/load-image.ts";
import { imageFile, mediaFolder } from "../../images/media-store.ts";
import { toOpenaiToolCalls } from "../apis/tools.ts";

/** The messages of a model call, and its reply. */
export interface Conversation {
  messages: readonly ChatMessage[];
  tools: readonly ToolDefinition[] | null;
}

/**
 * Leaves out calls that a later call continues.
 *
 * @param media the folder of images; default: relative to the run's folder
 */
export function conversationRows(calls: readonly Conversation[], media?: string) {
  const whole = calls.filter(
    ({ messages }, index) => !calls.slice(index + 1).some((later) => continues(later.messages, messages)),
  );
  return whole.map(({ messages, tools }) => ({
    messages: messages.map((message) => toOpenaiMessage(message, media)),
    tools: toOpenaiTools(tools),
  }));
}

/** JSON leaves out what is undefined. */
export const toOpenaiTools = (tools: Conversation["tools"]) =>
  tools?.length ? tools.map((tool) => ({ type: "function", function: tool })) : undefined;

/** Whether the messages are the start, or continue it. */
export const begins = (messages: readonly ChatMessage[], start: readonly ChatMessage[]) =>
  start.every((message, index) => sameTurn(message, messages[index]));

const continues = (longer: readonly ChatMessage[], start: readonly ChatMessage[]) =>
  longer.length > start.length && begins(longer, start);

/** Clients leave thinking out and write arguments in another way. */
function sameTurn(left: ChatMessage, right: ChatMessage | undefined): boolean {
  const callsOf = ({ toolCalls = [] }: ChatMessage) => toolCalls.map(({ name, arguments: given }) => [name, given]);
  return (
    left.role === right?.role &&
    textOf(left.content).trim() === textOf(right.content).trim() &&
    isDeepStrictEqual(imagesOf([left]), imagesOf([right])) &&
    isDeepStrictEqual(callsOf(left), callsOf(right))
  );
}

/** JSON leaves out what is undefined. @param media the folder of images */
export const toOpenaiMessage = (
  { role, content, reasoning, toolCalls, toolCallId, name }: ChatMessage,
  media: string = mediaFolder,
) => ({
  role,
  content: toOpenaiContent(content, media),
  reasoning_content: reasoning,
  tool_calls: toolCalls && toOpenaiToolCalls(toolCalls),
  tool_call_id: toolCallId,
  name,
});

/** An image is its file. */
const toOpenaiContent = (content: Content, media: string) =>
  typeof content === "string"
    ? content
    : content.map((part) => {
        if (part.type === "text") return part;
        const { image } = part;
        const url = isStored(image) ? `${media}/${imageFile(image)}` : isClientImage(image) ? image.address : undefined;
        return url === undefined ? part : { type: "image_url", image_url: { url } };
      });
