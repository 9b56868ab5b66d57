/** Sends images to a Tinker service, as chunks of an input. */
import { RunError } from "../../errors.ts";
import { readImageHeader } from "../../images/image-header.ts";
import type { MediaStore } from "../../images/media-store.ts";
import type { Media } from "../../images/types.ts";
import { chunkToJson, type InputChunk } from "../../tinker-protocol/chunks.ts";
import type { EngineImages } from "../engine.ts";
import type { TinkerSession } from "./session.ts";

/** Reads the chunks of some inputs, in their order. */
export const readChunks = (
  inputs: readonly { tokens: Int32Array; media?: readonly Media[] | undefined }[],
  store: MediaStore,
): Promise<InputChunk[][]> => Promise.all(inputs.map(({ tokens, media }) => chunksOf(tokens, media ?? [], store)));

async function chunksOf(tokens: Int32Array, media: readonly Media[], store: MediaStore): Promise<InputChunk[]> {
  const chunks: InputChunk[] = [];
  let read = 0;
  for (const { at, length, hash } of media) {
    if (at > read) chunks.push({ kind: "text", tokens: tokens.slice(read, at) });
    chunks.push({ ...(await imageChunk(store, hash)), expectedTokens: length });
    read = at + length;
  }
  if (read > tokens.length) throw new RunError("a sequence ends within an image");
  if (read < tokens.length) chunks.push({ kind: "text", tokens: tokens.slice(read) });
  return chunks;
}

async function imageChunk(store: MediaStore, hash: string): Promise<InputChunk & { kind: "image" }> {
  const data = await store.read(hash);
  return { kind: "image", data, format: readImageHeader(data).type === "image/png" ? "png" : "jpeg" };
}

/** Number of images whose tokens are cached. */
const maxCached = 4096;

/** The images of a model whose service has `imageTokens`. */
export function servedImages(
  { connection, media: store }: TinkerSession,
  model: string,
  placeholder: EngineImages["placeholder"],
): EngineImages {
  const known = new Map<string, Promise<Int32Array>>();
  const ask = async (hash: string) => {
    const image = chunkToJson(await imageChunk(store, hash));
    const { tokens } = await connection.post("image_tokens", { base_model: model, image });
    if (!Array.isArray(tokens)) throw new RunError("the Tinker service answered image_tokens without tokens");
    return Int32Array.from(tokens);
  };
  return {
    placeholder,
    store,
    tokensOf: (images) =>
      Promise.all(
        images.map(({ hash }) => {
          const tokens = known.get(hash) ?? ask(hash);
          known.set(hash, tokens);
          tokens.catch(() => known.delete(hash));
          const [oldest] = known.keys();
          if (oldest !== undefined && known.size > maxCached) known.delete(oldest);
          return tokens;
        }),
      ),
  };
}
