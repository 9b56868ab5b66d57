/** A model's input of a request: tokens and images. */
import type { Engine } from "../../backends/engine.ts";
import type { InputChunk } from "../../backends/tinker/messages.ts";
import { UserError } from "../../base/errors.ts";
import { concatenate } from "../../base/values.ts";
import { imageLimits, type Media, type StoredImage } from "../../images/images.ts";
import type { ImageLoader } from "../../images/load-image.ts";
import type { BaseModel } from "./base-models.ts";

export interface ModelInput {
  tokens: Int32Array;
  /** The images within the tokens; absent: none. */
  media?: Media[];
}

/** What reading an input needs of a base model. */
export type ImageBase = Pick<BaseModel, "engine" | "supervisor" | "loader">;

/**
 * Images become the tokens that stand for them.
 * @throws UserError that names the chunk
 */
export async function readInput(
  chunks: readonly InputChunk[],
  { engine, supervisor, loader }: ImageBase,
  signal?: AbortSignal,
): Promise<ModelInput> {
  const count = chunks.filter(({ kind }) => kind !== "text").length;
  if (count > imageLimits.perRequest) {
    throw new UserError(`the input has ${count} images; the limit is ${imageLimits.perRequest}`);
  }
  const parts: Int32Array[] = [];
  const media: Media[] = [];
  let at = 0;
  for (const [index, chunk] of chunks.entries()) {
    const part =
      chunk.kind === "text"
        ? { tokens: chunk.tokens }
        : await inChunk(index, async () => readImage(chunk, await supervisor.ready(), loader, signal));
    if ("hash" in part) media.push({ at, length: part.tokens.length, hash: part.hash });
    parts.push(part.tokens);
    at += part.tokens.length;
  }
  const tokens = concatenate(Int32Array, parts);
  requireKnown(tokens, engine.model);
  return media.length === 0 ? { tokens } : { tokens, media };
}

/** @throws UserError that names the first token outside of the vocabulary */
export function requireKnown(
  tokens: { find(fits: (token: number) => boolean): number | undefined },
  { vocabularySize }: Pick<Engine["model"], "vocabularySize">,
  field?: string,
): void {
  const wrong = tokens.find((token) => token < 0 || token >= vocabularySize);
  if (wrong === undefined) return;
  const place = field === undefined ? "" : `${field}: `;
  throw new UserError(`${place}token ${wrong} is not in the vocabulary of ${vocabularySize}`);
}

async function readImage(
  chunk: Exclude<InputChunk, { kind: "text" }>,
  { images, imagesReason, model }: Engine,
  loader: ImageLoader | undefined,
  signal: AbortSignal | undefined,
): Promise<{ tokens: Int32Array; hash: string }> {
  if (chunk.kind === "other")
    throw new UserError(`the input has a chunk of kind ${chunk.name}, which is not supported`);
  if (images === undefined || loader === undefined)
    throw new UserError(`the input has an image, but ${imagesReason ?? `${model.name} reads only text`}`);
  const source = chunk.kind === "image" ? chunk.data : { address: addressOf(chunk.location) };
  const image = await loader.load(source, signal);
  requireFormat(chunk.format, image);
  const [tokens] = await images.tokensOf([image], signal);
  const { expectedTokens: expected } = chunk;
  if (typeof expected === "number" && expected !== tokens!.length) {
    throw new UserError(`expected_tokens is ${expected}, but this image has ${tokens!.length} tokens`);
  }
  return { tokens: tokens!, hash: image.hash };
}

function requireFormat(format: string | undefined, { type }: StoredImage): void {
  if (format === undefined || type === `image/${format}`) return;
  throw new UserError(`format is ${format}, but the image is ${type}`);
}

/** @throws UserError for files, which clients must not read */
function addressOf(location: string): string {
  if (/^(data:|https?:)/i.test(location)) return location;
  throw new UserError("location must be a data URL or an http(s) address", {
    hint: "send a file's bytes as a chunk of type image",
  });
}

async function inChunk<T>(index: number, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (!(error instanceof UserError)) throw error;
    throw new UserError(`chunk ${index}: ${error.message}`, { hint: error.hint, cause: error });
  }
}
