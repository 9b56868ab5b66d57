/** The parts of a conversation: messages, tool calls, tool definitions. */
import { isDeepStrictEqual } from "node:util";
import type { ImageSource, StoredImage } from "../images/images.ts";
import { isStored } from "../images/load-image.ts";

/** A call that the model asks for. */
export interface ToolCall {
  /** The result of the call refers to it. Ids from Hone are unique within a rollout. */
  id: string;
  name: string;
  /** A JSON object. */
  arguments: Readonly<Record<string, unknown>>;
  /** The arguments as JSON text, exactly as the model wrote them if its format allows that. */
  argumentsText?: string;
  /** The id in the model's own text, if its format has ids. Templates get it instead of `id`. */
  writtenId?: string;
}

export interface TextPart {
  type: "text";
  text: string;
}

export interface ImagePart {
  type: "image";
  image: ImageSource;
}

/** Text, or text and images in order. Only user and tool messages have images. */
export type Content = string | readonly (TextPart | ImagePart)[];

/** A message of a conversation; the APIs of providers are translated to and from it. */
export interface ChatMessage {
  role: "system" | "user" | "assistant" | "tool";
  /** Empty if an assistant's message consists of tool calls. */
  content: Content;
  /** The assistant's thinking before its answer, without the tags around it. */
  reasoning?: string | undefined;
  /** Only of an assistant. */
  toolCalls?: readonly ToolCall[] | undefined;
  /** Only of a tool's message: the call that it answers. */
  toolCallId?: string;
  /** Only of a tool's message: the tool's name. Some templates write it. */
  name?: string;
}

export interface TextMessage extends ChatMessage {
  content: string;
}

/** A model's reply, which is always text. */
export interface AssistantMessage extends TextMessage {
  role: "assistant";
}

/** What the model is told about a tool. */
export interface ToolDefinition {
  name: string;
  description?: string;
  /** JSON Schema of the arguments; absent if the tool takes none. */
  parameters?: Readonly<Record<string, unknown>>;
}

/** A part of a reply that could not be parsed. Its text stays in the reply's content. */
export interface ReplyProblem {
  kind: "malformed_tool_call" | "unclosed_tool_call" | "unclosed_thinking";
  message: string;
  text: string;
}

/** A parsed reply. A malformed call is not an error but a problem, which an environment can respond to. */
export interface ParsedReply {
  content: string;
  reasoning?: string | undefined;
  toolCalls: ToolCall[];
  problems: ReplyProblem[];
}

/** The reply as a message for the history. */
export function toMessage({ content, reasoning, toolCalls }: MessageParts): AssistantMessage {
  const message: AssistantMessage = { role: "assistant", content };
  if (reasoning) message.reasoning = reasoning;
  if (toolCalls.length > 0) message.toolCalls = toolCalls;
  return message;
}

interface MessageParts {
  content: string;
  reasoning?: string | undefined;
  toolCalls: readonly ToolCall[];
}

// The content of messages: text, or text and images.

/** The text of a content for graders and people. Parts follow each other directly; an image is "[image]". */
export const textOf = (content: Content): string =>
  typeof content === "string"
    ? content
    : content.map((part) => (part.type === "text" ? part.text : "[image]")).join("");

/** The same for people who look at the messages: an image is "[image 64x48 png]". */
export const describeContent = (content: Content): string =>
  typeof content === "string"
    ? content
    : content.map((part) => (part.type === "text" ? part.text : describeImage(part))).join("");

function describeImage({ image }: ImagePart): string {
  if (!isStored(image)) return "[image]";
  return `[image ${image.width}x${image.height} ${image.type.replace("image/", "")}]`;
}

export const hasImages = (content: Content): boolean =>
  typeof content !== "string" && content.some(({ type }) => type === "image");

/** One form of equal contents: text alone is a string, and adjacent texts are one part. */
export function normalizeContent(content: Content): Content {
  if (typeof content === "string") return content;
  if (!hasImages(content)) return textOf(content);
  const parts: (TextPart | ImagePart)[] = [];
  for (const part of content) {
    const last = parts.at(-1);
    if (part.type !== "text" || last?.type !== "text") parts.push(part);
    else parts[parts.length - 1] = { type: "text", text: last.text + part.text };
  }
  return parts;
}

export const joinContents = (...contents: readonly Content[]): Content =>
  normalizeContent(
    contents.flatMap((content) => (typeof content === "string" ? [{ type: "text" as const, text: content }] : content)),
  );

/** The stored images of messages, in order. */
export const imagesOf = (messages: readonly ChatMessage[]): StoredImage[] =>
  messages.flatMap(({ content }) =>
    typeof content === "string"
      ? []
      : content.flatMap((part) => (part.type === "image" && isStored(part.image) ? [part.image] : [])),
  );

/** Images are the same if their bytes are. Both contents are normalized, and their images stored. */
export function sameContent(left: Content, right: Content): boolean {
  if (typeof left === "string" || typeof right === "string") return left === right;
  return isDeepStrictEqual(left.map(keyOf), right.map(keyOf));
}

const keyOf = (part: TextPart | ImagePart): string => {
  if (part.type === "text") return `text ${part.text}`;
  return `image ${isStored(part.image) ? part.image.hash : ""}`;
};
