/** Stores the images of a conversation and asks the engine for their tokens. */
import { HoneError, RunError, UserError } from "../../errors.ts";
import { imageLimits } from "../../images/image-limits.ts";
import { checkImageFile, type ImageLoader } from "../../images/load-image.ts";
import type { ImageSource, Media, StoredImage } from "../../images/types.ts";
import { UnusableImage } from "../../images/unusable-image.ts";
import type { ChatMessage, ImagePart, TextPart } from "../messages.ts";
import type { Chat, LaterOptions, RenderOptions } from "../types.ts";
import { hasImages, imagesOf, normalizeContent } from "./content.ts";
import { type PromptImages, placeImages } from "./place-images.ts";

/** How a model sees images. */
export interface Vision {
  readonly placeholder: PromptImages["placeholder"];
  /** `[images]` the tokens that stand for each image. */
  tokensOf(images: readonly StoredImage[], signal?: AbortSignal): Promise<Int32Array[]>;
  readonly loader: ImageLoader;
}

/** Why a model does not see images, as a clause: "the model x reads only text". */
export type Blind = string;

export interface PreparedMessages {
  /** With normalized contents and stored images. */
  messages: readonly ChatMessage[];
  /** Absent for a model that reads only text. */
  images?: PromptImages;
}

/**
 * Messages without images are returned unchanged.
 * @throws UserError naming the message whose image cannot be used
 */
export async function prepareImages(
  messages: readonly ChatMessage[],
  vision: Vision | Blind,
  signal?: AbortSignal,
): Promise<PreparedMessages> {
  if (messages.every(({ content }) => !Array.isArray(content))) {
    return typeof vision === "string" ? { messages } : { messages, images: emptyImages(vision) };
  }
  requireImages(messages, vision);
  const where = whereIn(messages);
  const stored: ChatMessage[] = [];
  for (const [index, message] of messages.entries()) {
    stored.push(await storeImages(message, where(index), vision, signal));
  }
  if (typeof vision === "string") return { messages: stored };
  const tokens = new Map<string, Int32Array>();
  for (const [index, message] of stored.entries()) {
    const unique = [...new Map(imagesOf([message]).map((image) => [image.hash, image])).values()];
    if (unique.length === 0) continue;
    const found = await located(where(index), named(messages[index]!, message, vision.tokensOf(unique, signal)));
    for (const [place, { hash }] of unique.entries()) tokens.set(hash, found[place]!);
  }
  return { messages: stored, images: { placeholder: vision.placeholder, tokens } };
}

/**
 * Checks what `prepareImages` checks, without reading images: files must exist, and addresses are not fetched.
 * @throws UserError naming the message
 */
export async function checkImages(messages: readonly ChatMessage[], vision: Vision | Blind): Promise<void> {
  requireImages(messages, vision);
  const where = whereIn(messages);
  for (const [index, message] of messages.entries()) {
    for (const { image } of contentImages(message)) await located(where(index), checkImageFile(image));
  }
}

const whereIn = (messages: readonly ChatMessage[]) => (index: number) =>
  `message ${index + 1} (${messages[index]!.role})`;

function requireImages(messages: readonly ChatMessage[], vision: Vision | Blind): void {
  const where = whereIn(messages);
  for (const [index, { content }] of messages.entries()) {
    if (Array.isArray(content)) requireParts(content, where(index));
  }
  requireFew(messages);
  for (const [index, { role, content }] of messages.entries()) {
    if (!hasImages(content)) continue;
    if (typeof vision === "string") throw new UserError(`${where(index)} has an image, but ${vision}`);
    if (role === "assistant" || role === "system") {
      throw new UserError(`${where(index)} has an image; only user and tool messages may have images`);
    }
  }
}

const emptyImages = ({ placeholder }: Vision): PromptImages => ({ placeholder, tokens: new Map() });

function requireFew(messages: readonly ChatMessage[]): void {
  const count = messages
    .flatMap(({ content }) => (Array.isArray(content) ? content : []))
    .filter(({ type }) => type === "image").length;
  if (count <= imageLimits.perRequest) return;
  throw new UserError(`the messages have ${count} images; the limit of a model call is ${imageLimits.perRequest}`);
}

async function storeImages(
  message: ChatMessage,
  where: string,
  vision: Vision | Blind,
  signal: AbortSignal | undefined,
): Promise<ChatMessage> {
  const { content } = message;
  if (!Array.isArray(content)) return message;
  // `requireImages` has refused images for such a model.
  if (!hasImages(content) || typeof vision === "string") return { ...message, content: normalizeContent(content) };
  const parts: (TextPart | ImagePart)[] = [];
  for (const part of content) {
    if (part.type === "text") parts.push(part);
    else parts.push({ type: "image", image: await located(where, vision.loader.load(part.image, signal)) });
  }
  return { ...message, content: normalizeContent(parts) };
}

function requireParts(content: readonly unknown[], where: string): void {
  for (const [index, part] of content.entries()) {
    const { type, text, image } = (typeof part === "object" && part !== null ? part : {}) as Record<string, unknown>;
    if (type === "text" && typeof text === "string") continue;
    if (type === "image" && image !== undefined && image !== null) continue;
    throw new UserError(`part ${index + 1} of ${where} is not a text or an image`, {
      hint: '{ type: "text", text } or { type: "image", image }',
    });
  }
}

/** Names the file or address of an image that the worker cannot decode, if the user named one. */
async function named<T>(given: ChatMessage, stored: ChatMessage, work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (error) {
    if (!(error instanceof UnusableImage)) throw error;
    const place = imagesOf([stored]).findIndex(({ hash }) => hash === error.hash);
    const name = nameOf(contentImages(given)[place]?.image);
    throw name === undefined ? error : new UserError(`${name} cannot be used: ${error.reason}`, { cause: error });
  }
}

const contentImages = ({ content }: ChatMessage): ImagePart[] =>
  typeof content === "string" ? [] : content.filter((part) => part.type === "image");

function nameOf(source: ImageSource | undefined): string | undefined {
  if (source === undefined || source instanceof Uint8Array) return undefined;
  const name =
    typeof source === "string" || source instanceof URL ? String(source) : "path" in source ? source.path : null;
  return name === null || /^data:/i.test(name) ? undefined : name.slice(0, 200);
}

async function located<T>(where: string, work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (error) {
    if (!(error instanceof HoneError)) throw error;
    const Kind = error instanceof RunError ? RunError : UserError;
    throw new Kind(`${where}: ${error.message}`, { hint: error.hint, cause: error });
  }
}

export interface RenderedPrompt {
  tokens: Int32Array;
  media: readonly Media[];
  /** As `prepareImages` returns them. */
  messages: readonly ChatMessage[];
}

/** A conversation as the tokens and images that the model reads. @throws as `prepareImages` and `Chat.renderLater` do */
export async function renderWithImages(
  chat: Pick<Chat, "renderLater">,
  vision: Vision | Blind,
  given: readonly ChatMessage[],
  options: RenderOptions & LaterOptions = {},
): Promise<RenderedPrompt> {
  const { messages, images } = await prepareImages(given, vision, options.signal);
  const tokens = await chat.renderLater(messages, options);
  return { messages, ...(images ? placeImages(tokens, imagesOf(messages), images) : { tokens, media: [] }) };
}
