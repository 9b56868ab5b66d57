/** Images in requests to servers. The prompt has one placeholder for each image, which the server expands. */
import { concatenate } from "../../../concatenate.ts";
import { UserError } from "../../../errors.ts";
import type { EngineImages, SampleRequest } from "../../engine.ts";

/** The image tokens of the trainer's model, which the servers also have. */
export type ServedImages = Omit<EngineImages, "tokensOf">;

/** How a kind of server reads the images of a prompt. */
export interface ImageReading {
  /** Which placeholders it reads as images: the first ones, as many as there are images, or all. */
  placeholders: "first" | "all";
  /** Whether it blends transparent pixels with white, as the trainer does. */
  transparency: boolean;
}

/** A prompt with images in the form for servers. */
export interface ServedRequest extends SampleRequest {
  /** Data URLs, one for each placeholder of the prompt; absent if there are none. */
  images?: readonly string[];
}

/**
 * @throws UserError if the server would read an image differently from the trainer
 * @throws Error if the model itself sampled a placeholder that the server would use for an image
 */
export async function toServed(
  request: SampleRequest,
  images: ServedImages | undefined,
  reading: ImageReading | undefined,
): Promise<ServedRequest> {
  const { prompt, media = [] } = request;
  if (media.length === 0) return request;
  if (images === undefined) throw new UserError("this sampler does not send images to its inference server");
  const { placeholder, store, transparent } = images;
  const pieces: Int32Array[] = [];
  let read = 0;
  for (const { at, length, hash } of media) {
    if (!reading?.transparency && transparent?.has(hash))
      throw new UserError(`the image ${hash} has transparent pixels`, { hint: opaque });
    const before = prompt.subarray(read, at);
    if (before.includes(placeholder.id)) {
      throw new Error(
        `the model sampled ${placeholder.text} before an image, so the inference server would assign the image to the wrong place`,
      );
    }
    pieces.push(before, Int32Array.of(placeholder.id));
    read = at + length;
  }
  const rest = prompt.subarray(read);
  if (reading?.placeholders === "all" && rest.includes(placeholder.id)) {
    throw new Error(
      `the model sampled ${placeholder.text} after the last image, and the inference server would look for a further image`,
    );
  }
  const urls = media.map(async ({ hash }) => toDataUrl(await store.read(hash)));
  return {
    ...request,
    prompt: concatenate(Int32Array, [...pieces, rest]),
    images: await Promise.all(urls),
  };
}

const opaque = "save it without transparency: the trainer blends it with white, and this inference server does not";

/** Only PNG files begin with the byte 0x89. */
const toDataUrl = (bytes: Uint8Array) =>
  `data:image/${bytes[0] === 0x89 ? "png" : "jpeg"};base64,${Buffer.from(bytes).toString("base64")}`;

/**
 * @param given the prompt that the server returned
 * @param hint how to start the server
 * @throws UserError if it differs from the trainer's, because then the images' features would be at other places
 */
export function requireSamePrompt({ prompt }: SampleRequest, given: unknown, hint: string): void {
  if (!Array.isArray(given)) {
    throw new UserError("the inference server's answer to a prompt with images has no prompt_token_ids", {
      hint: "use vLLM 0.32 or newer, or SGLang 0.5.13 or newer",
    });
  }
  const at = prompt.findIndex((token, index) => token !== given[index]);
  if (at === -1 && given.length === prompt.length) return;
  throw new UserError(
    `the inference server has ${given.length} tokens for a prompt with images, the trainer ${prompt.length}. They differ from token ${at === -1 ? prompt.length : at} on, because the image processors differ`,
    { hint },
  );
}
