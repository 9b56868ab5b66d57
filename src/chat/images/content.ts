/** The content of messages: text, or text and images. */
import { isDeepStrictEqual } from "node:util";
import { isStored } from "../../images/load-image.ts";
import type { StoredImage } from "../../images/types.ts";
import type { ChatMessage, Content, ImagePart, TextPart } from "../messages.ts";

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
