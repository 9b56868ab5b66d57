/** Replaces the placeholders that a chat template writes with the tokens of the images. */
import { concatenate } from "../../concatenate.ts";
import { UserError } from "../../errors.ts";
import type { Media, StoredImage } from "../../images/types.ts";

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
