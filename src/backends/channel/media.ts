/** Sends images to the worker: the bytes once, by hash; the places in sequences as ranges. */
import { concatenate } from "../../concatenate.ts";
import { RunError, UserError } from "../../errors.ts";
import type { MediaStore } from "../../images/media-store.ts";
import type { Media, StoredImage } from "../../images/types.ts";
import { offsetsOf } from "../../trajectories/batch.ts";
import type { EngineImages } from "../engine.ts";
import { type Connection, UnknownMediaError } from "./connection.ts";
import type { OutgoingArrays } from "./frames.ts";

/** Number of images whose tokens are cached. */
const mostRemembered = 4096;

/** @param placeholder as the worker reports it with its model */
export function workerImages(
  connection: Connection,
  store: MediaStore,
  placeholder: EngineImages["placeholder"],
): EngineImages {
  const known = new Map<string, Int32Array>();
  const transparent = new Set<string>();
  return {
    placeholder,
    store,
    transparent,
    async tokensOf(images) {
      const missing = images.filter(({ hash }) => !known.has(hash));
      // Entries that are needed for the answer must not be dropped from the cache.
      const tokens = new Map(images.map(({ hash }) => [hash, known.get(hash)]));
      if (missing.length > 0) {
        const answered = await putImages(connection, store, missing, transparent);
        missing.forEach(({ hash }, index) => {
          tokens.set(hash, answered[index]!);
          known.set(hash, answered[index]!);
        });
        for (const hash of [...known.keys()].slice(0, Math.max(0, known.size - mostRemembered))) known.delete(hash);
      }
      return images.map(({ hash }) => tokens.get(hash)!);
    },
  };
}

/**
 * Sends images to the worker.
 *
 * @param transparent gets the hashes of those with transparent pixels
 * @throws UserError if one cannot be decoded
 */
async function putImages(
  connection: Connection,
  store: MediaStore,
  images: readonly Pick<StoredImage, "hash">[],
  transparent?: Set<string>,
): Promise<Int32Array[]> {
  const files = await Promise.all(images.map(({ hash }) => store.read(hash)));
  const { header, arrays } = await connection.request(
    "put_media",
    { hashes: images.map(({ hash }) => hash) },
    { bytes: concatenate(Uint8Array, files), offsets: offsetsOf(files.map(({ length }) => length)) },
  ).answer;
  const answers = header.media as readonly { error?: string; transparent?: boolean }[];
  for (const [index, { hash }] of images.entries()) {
    const { error, transparent: isTransparent } = answers[index] ?? {};
    if (error !== undefined) throw new UserError(`the image ${hash.slice(0, 12)} cannot be used: ${error}`);
    if (isTransparent) transparent?.add(hash);
  }
  const [tokens, offsets] = [arrays.tokens?.data, arrays.offsets?.data];
  if (!(tokens instanceof Int32Array) || !(offsets instanceof Int32Array)) {
    throw new RunError("the worker's answer to put_media has no tokens");
  }
  return images.map((_, index) => tokens.slice(offsets[index], offsets[index + 1]));
}

/** The places of images in sequences, in the form of the protocol; nothing if there are none. */
export function mediaFields(sequences: readonly { media?: readonly Media[] }[]): {
  fields: { media?: string[] };
  arrays: OutgoingArrays;
} {
  const placed = sequences.flatMap(({ media = [] }, sequence) => media.map((each) => ({ sequence, ...each })));
  if (placed.length === 0) return { fields: {}, arrays: {} };
  return {
    fields: { media: placed.map(({ hash }) => hash) },
    arrays: {
      media_ranges: {
        data: Int32Array.from(placed.flatMap(({ sequence, at, length }) => [sequence, at, length])),
        shape: [placed.length, 3],
      },
    },
  };
}

/** Sends images again that the worker has dropped, and repeats the request once. */
export async function withMedia<T>(connection: Connection, store: MediaStore, run: () => Promise<T>): Promise<T> {
  try {
    return await run();
  } catch (error) {
    if (!(error instanceof UnknownMediaError)) throw error;
    await putAgain(connection, store, error);
    return run();
  }
}

export async function putAgain(connection: Connection, store: MediaStore, { hashes }: UnknownMediaError) {
  await putImages(
    connection,
    store,
    hashes.map((hash) => ({ hash })),
  );
}
