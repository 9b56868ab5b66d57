/** Images in requests to servers, which expand a placeholder for each image themselves. */
import { concatenate } from "../../../concatenate.ts";
import { UserError } from "../../../errors.ts";
import type { EngineImages, SampleRequest } from "../../engine.ts";

/** How the trainer's model sees images; the servers have the same model. */
export type ServedImages = Omit<EngineImages, "tokensOf">;

/** A request as a server gets it. */
export interface ServedRequest extends SampleRequest {
  /** Data URLs. The prompt has one placeholder for each; absent: it has none. */
  images?: readonly string[];
}

/**
 * @throws UserError if the server would read an image otherwise than the trainer
 * @throws Error if the model itself sampled a placeholder before an image: the server would take it for the image
 */
export async function toServed(request: SampleRequest, images: ServedImages | undefined): Promise<ServedRequest> {
  const { prompt, media = [] } = request;
  if (media.length === 0) return request;
  if (images === undefined) throw new UserError("this sampler does not pass images on to its inference server");
  const { placeholder, store, transparent } = images;
  const pieces: Int32Array[] = [];
  let read = 0;
  for (const { at, length, hash } of media) {
    if (transparent?.has(hash)) throw new UserError(`the image ${hash} is transparent`, { hint: opaque });
    const before = prompt.subarray(read, at);
    if (before.includes(placeholder.id)) {
      throw new Error(
        `the model sampled ${placeholder.text} before an image, and an inference server takes it for the image`,
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

/** PNG files begin with the byte 0x89. */
const toDataUrl = (bytes: Uint8Array) =>
  `data:image/${bytes[0] === 0x89 ? "png" : "jpeg"};base64,${Buffer.from(bytes).toString("base64")}`;

/**
 * @param given the prompt that the server read
 * @throws UserError if it is not the trainer's: both place the images' features by their own tokens
 */
export function requireSamePrompt({ prompt }: SampleRequest, given: unknown): void {
  if (!Array.isArray(given)) throw new Error("the inference server's answer has no prompt_token_ids");
  const at = prompt.findIndex((token, index) => token !== given[index]);
  if (at === -1 && given.length === prompt.length) return;
  throw new UserError(
    `the inference server reads ${given.length} tokens for a prompt with images, and the trainer ${prompt.length}, which differ from token ${at === -1 ? prompt.length : at} on: their image processors differ`,
    { hint: "serve the run's model folder with its own preprocessor_config.json, without --mm-processor-kwargs" },
  );
}
