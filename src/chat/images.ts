/** Replaces the placeholders that a chat template writes with the tokens of the images. */
import { HoneError, RunError, UserError } from "../base/errors.ts";
import { concatenate } from "../base/values.ts";
import { type ImageSource, imageLimits, type Media, type StoredImage, UnusableImage } from "../images/images.ts";
import { checkImageFile, type ImageLoader } from "../images/load-image.ts";
import { type ChatMessage, hasImages, type ImagePart, imagesOf, normalizeContent, type TextPart } from "./messages.ts";
import type { Chat, GuardOptions, LaterOptions, RenderOptions } from "./types.ts";

/** The images of a prompt, as the model needs them. */
export interface PromptImages {
  /** What the chat template writes for an image: one token. */
  placeholder: { text: string; id: number };
  /** `[length]` the tokens that stand for an image, by its hash. */
  tokens: ReadonlyMap<string, Int32Array>;
}

export interface PlacedImages {
  tokens: Int32Array;
  media: Media[];
}

/**
 * @param tokens of the rendered text, with one placeholder for each image
 * @throws UserError if the template wrote another number of placeholders
 */
export function placeImages(
  tokens: Int32Array,
  images: readonly StoredImage[],
  { placeholder, tokens: tokensOf }: PromptImages,
): PlacedImages {
  const places = [...tokens.keys()].filter((index) => tokens[index] === placeholder.id);
  if (places.length !== images.length) {
    throw new UserError(
      `the prompt has ${images.length} images, but its text contains ${placeholder.text} ${places.length} times`,
      { hint: `pass images as parts of messages; text must not contain ${placeholder.text}` },
    );
  }
  const pieces: Int32Array[] = [];
  const media: Media[] = [];
  let read = 0;
  let written = 0;
  for (const [index, place] of places.entries()) {
    const { hash } = images[index]!;
    const own = tokensOf.get(hash);
    if (own === undefined) throw new Error(`the image ${hash} was not prepared`);
    const before = tokens.subarray(read, place);
    pieces.push(before, own);
    media.push({ at: written + before.length, length: own.length, hash });
    written += before.length + own.length;
    read = place + 1;
  }
  return { tokens: concatenate(Int32Array, [...pieces, tokens.subarray(read)]), media };
}

// Stores the images of a conversation and asks the engine for their tokens.

/** How a model sees images. */
export interface Vision {
  readonly placeholder: PromptImages["placeholder"];
  /** `[images]` the tokens that stand for each image. */
  tokensOf(images: readonly StoredImage[], signal?: AbortSignal): Promise<Int32Array[]>;
  readonly loader: ImageLoader;
}

/** Why a model does not see images, as a clause: "the model x reads only text". */
export type NoVision = string;

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
  vision: Vision | NoVision,
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
export async function checkImages(messages: readonly ChatMessage[], vision: Vision | NoVision): Promise<void> {
  requireImages(messages, vision);
  const where = whereIn(messages);
  for (const [index, message] of messages.entries()) {
    for (const { image } of contentImages(message)) await located(where(index), checkImageFile(image));
  }
}

const whereIn = (messages: readonly ChatMessage[]) => (index: number) =>
  `message ${index + 1} (${messages[index]!.role})`;

function requireImages(messages: readonly ChatMessage[], vision: Vision | NoVision): void {
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
  vision: Vision | NoVision,
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
  vision: Vision | NoVision,
  given: readonly ChatMessage[],
  options: RenderOptions & GuardOptions & LaterOptions = {},
): Promise<RenderedPrompt> {
  const { messages, images } = await prepareImages(given, vision, options.signal);
  const tokens = await chat.renderLater(messages, options);
  return { messages, ...(images ? placeImages(tokens, imagesOf(messages), images) : { tokens, media: [] }) };
}
