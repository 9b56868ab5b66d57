/** Reads the contents of messages: text, or text and images. Images are data URLs or addresses, never files of this machine. */
import { normalizeContent } from "../../chat/images/content.ts";
import type { Content, ImagePart, TextPart } from "../../chat/messages.ts";
import { isObject } from "../../is-object.ts";
import type { Notices } from "../calls/model-call.ts";
import { type Body, badParameter } from "../requests/read-parameters.ts";

/** Text, or a list of parts that are all text. */
export function textOf(content: unknown, at: string): string {
  const read = readContent(content, at, () => undefined);
  return typeof read === "string" ? read : "";
}

/** Text and images of OpenAI's APIs: `image_url` (chat) and `input_image` (responses). */
export const openaiContent = (content: unknown, at: string, notices: Notices): Content =>
  readContent(content, at, (part, where) => openaiImage(part, where, notices));

/** Text and images of Anthropic's API. */
export const anthropicContent = (content: unknown, at: string): Content => readContent(content, at, anthropicImage);

/**
 * The result of a tool. The AI SDK's client for compatible servers sends a result with images as JSON, whose base64 a model would
 * read as thousands of tokens.
 */
export function toolContent(content: unknown, at: string, notices: Notices): Content {
  const parts = typeof content === "string" ? aiSdkParts(content) : undefined;
  if (parts === undefined) return openaiContent(content, at, notices);
  notices.add(
    "images_in_json",
    "a tool's result in the AI SDK's form, as JSON with images, is read as its text and images",
  );
  return normalizeContent(parts);
}

/** Undefined for any other text. */
function aiSdkParts(content: string): (TextPart | ImagePart)[] | undefined {
  if (!/^\[\s*\{/.test(content) || !/"(image-data|file-data|media|image-url)"/.test(content)) return undefined;
  let list: unknown;
  try {
    list = JSON.parse(content);
  } catch {
    return undefined;
  }
  const parts = (list as unknown[]).map((part) => (isObject(part) ? aiSdkPart(part) : undefined));
  const known = parts.filter((part) => part !== undefined);
  return known.length === parts.length && known.some(({ type }) => type === "image") ? known : undefined;
}

function aiSdkPart({ type, text, data, mediaType, url }: Body): TextPart | ImagePart | undefined {
  if (type === "text" && typeof text === "string") return { type: "text", text };
  if (type === "image-url" && typeof url === "string") return { type: "image", image: { address: url } };
  const isData = type === "image-data" || type === "file-data" || type === "media";
  if (!isData || typeof data !== "string" || typeof mediaType !== "string") return undefined;
  return mediaType.startsWith("image/")
    ? { type: "image", image: { address: `data:${mediaType};base64,${data}` } }
    : undefined;
}

type ReadImage = (part: Body, where: string) => ImagePart | undefined;

function readContent(content: unknown, at: string, readImage: ReadImage): Content {
  if (typeof content === "string") return content;
  if (content === null || content === undefined) return "";
  if (!Array.isArray(content)) throw badParameter(at, `${at} must be a string or a list of parts`);
  const parts = content.map((part: unknown, index): TextPart | ImagePart => {
    const where = `${at}[${index}]`;
    if (isObject(part) && typeof part.text === "string") return { type: "text", text: part.text };
    const image = isObject(part) ? readImage(part, where) : undefined;
    if (image !== undefined) return image;
    const type = isObject(part) ? String(part.type) : typeof part;
    throw badParameter(
      where,
      `${where} is of type ${type}; only text and images of user and tool messages are supported`,
    );
  });
  return normalizeContent(parts);
}

function openaiImage(part: Body, where: string, notices: Notices): ImagePart | undefined {
  if (part.type !== "image_url" && part.type !== "input_image") return undefined;
  if (part.file_id !== undefined && part.file_id !== null) {
    throw badParameter(where, `${where}.file_id: the gateway has no files; send a data URL or an address`);
  }
  const given = isObject(part.image_url) ? part.image_url : { url: part.image_url, detail: part.detail };
  if (given.detail !== undefined && given.detail !== "auto") {
    notices.add(
      "ignored_parameter/detail",
      "detail is ignored: an image has the size that the model's processor gives it",
    );
  }
  return imagePart(given.url, where, "image_url");
}

export function anthropicImage({ type, source }: Body, where: string): ImagePart | undefined {
  if (type !== "image") return undefined;
  const { type: kind, media_type: mediaType, data, url } = isObject(source) ? source : {};
  if (kind === "url") return imagePart(url, where, "source.url");
  if (kind === "base64" && typeof mediaType === "string" && typeof data === "string") {
    return { type: "image", image: { address: `data:${mediaType};base64,${data}` } };
  }
  throw badParameter(where, `${where}.source must be base64 with media_type and data, or a url`);
}

function imagePart(url: unknown, where: string, name: string): ImagePart {
  if (typeof url === "string" && /^(data:|https?:)/i.test(url)) return { type: "image", image: { address: url } };
  throw badParameter(where, `${where}.${name} must be a data URL or an http(s) address`);
}

/** Joins the parts of a message, with line breaks between adjacent texts. */
export function joinLines(parts: readonly (TextPart | ImagePart)[]): Content {
  const lines = parts.map((part, index): TextPart | ImagePart => {
    const follows = part.type === "text" && parts[index - 1]?.type === "text";
    return follows ? { type: "text", text: `\n${part.text}` } : part;
  });
  return normalizeContent(lines);
}
