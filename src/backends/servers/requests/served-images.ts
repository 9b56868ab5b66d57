/** Images in requests to servers. The prompt has one placeholder for each image, which the server expands. */
import { concatenate } from "../../../concatenate.ts";
import { UserError } from "../../../errors.ts";
import type { EngineImages, SampleRequest } from "../../engine.ts";

/** The image tokens of the trainer's model, which the servers also have. */
export type ServedImages = Omit<EngineImages, "tokensOf">;

/** A prompt with images in the form for servers. */
export interface ServedRequest extends SampleRequest {
  /** Data URLs, one for each placeholder of the prompt; absent if there are none. */
  images?: readonly string[];
}

/**
 * @throws UserError if the server would read an image differently from the trainer
 * @throws Error if the model itself sampled a placeholder before an image, because the server would use it for the image
 */
export async function toServed(request: SampleRequest, images: ServedImages | undefined): Promise<ServedRequest> {
  const { prompt, media = [] } = request;
  if (media.length === 0) return request;
  if (images === undefined) throw new UserError("this sampler does not send images to its inference server");
  const { placeholder, store, transparent } = images;
  const pieces: Int32Array[] = [];
  let read = 0;
  for (const { at, length, hash } of media) {
    if (transparent?.has(hash)) throw new UserError(`the image ${hash} has transparent pixels`, { hint: opaque });
    const before = prompt.subarray(read, at);
    if (before.includes(placeholder.id)) {
      throw new Error(
        `the model sampled ${placeholder.text} before an image, so the inference server would assign the image to the wrong place`,
      );
    }
    pieces.push(before, Int32Array.of(placeholder.id));
    read = at + length;
  }
  const urls = media.map(async ({ hash }) => toDataUrl(await store.read(hash)));
  return {
    ...request,
    prompt: concatenate(Int32Array, [...pieces, prompt.subarray(read)]),
    images: await Promise.all(urls),
  };
}

const opaque = "save it without transparency: inference servers blend it with white, and the trainer does not";

/** Only PNG files begin with the byte 0x89. */
const toDataUrl = (bytes: Uint8Array) =>
  `data:image/${bytes[0] === 0x89 ? "png" : "jpeg"};base64,${Buffer.from(bytes).toString("base64")}`;

/**
 * @param given the prompt that the server returned
 * @throws UserError if it differs from the trainer's, because then the images' features would be at other places
 */
export function requireSamePrompt({ prompt }: SampleRequest, given: unknown): void {
  if (!Array.isArray(given)) throw new Error("the inference server's answer has no prompt_token_ids");
  const at = prompt.findIndex((token, index) => token !== given[index]);
  if (at === -1 && given.length === prompt.length) return;
  throw new UserError(
    `the inference server has ${given.length} tokens for a prompt with images, the trainer ${prompt.length}. They differ from token ${at === -1 ? prompt.length : at} on, because the image processors differ`,
    { hint: "serve the run's model folder with its own preprocessor_config.json, without --mm-processor-kwargs" },
  );
}
