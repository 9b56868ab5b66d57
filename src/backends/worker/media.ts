/** Sends images to the worker: the bytes once, by hash; the places in sequences as ranges. */

import { RunError } from "../../base/errors.ts";
import { concatenate } from "../../base/values.ts";
import { type Media, type MediaStore, type StoredImage, UnusableImage } from "../../images/images.ts";
import { offsetsOf } from "../../trajectories/batch.ts";
import type { EngineImages } from "../engine.ts";
import { type Connection, type OutgoingArrays, UnknownMediaError } from "./connection.ts";

/** Number of images whose tokens are cached. */
const maxRemembered = 4096;

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
    async tokensOf(images, signal) {
      const missing = images.filter(({ hash }) => !known.has(hash));
      // Entries that are needed for the answer must not be dropped from the cache.
      const tokens = new Map(images.map(({ hash }) => [hash, known.get(hash)]));
      if (missing.length > 0) {
        const answered = await putImages(connection, store, missing, { transparent, signal });
        missing.forEach(({ hash }, index) => {
          tokens.set(hash, answered[index]!);
          known.set(hash, answered[index]!);
        });
        for (const hash of [...known.keys()].slice(0, Math.max(0, known.size - maxRemembered))) known.delete(hash);
      }
      return images.map(({ hash }) => tokens.get(hash)!);
    },
  };
}

/**
 * Sends images to the worker.
 *
 * @param transparent gets the hashes of those with transparent pixels
 * @param signal ends the decoding
 * @throws UnusableImage if one cannot be decoded; the signal's reason
 */
async function putImages(
  connection: Connection,
  store: MediaStore,
  images: readonly Pick<StoredImage, "hash">[],
  { transparent, signal }: { transparent?: Set<string>; signal?: AbortSignal | undefined } = {},
): Promise<Int32Array[]> {
  const files = await Promise.all(images.map(({ hash }) => store.read(hash)));
  signal?.throwIfAborted();
  const { id, answer } = connection.request(
    "put_media",
    { hashes: images.map(({ hash }) => hash) },
    { bytes: concatenate(Uint8Array, files), offsets: offsetsOf(files.map(({ length }) => length)) },
  );
  // Workers of several processes answer that they do not support this.
  const end = () => void connection.request("abort", { media: id }).answer.catch(() => {});
  signal?.addEventListener("abort", end, { once: true });
  const { header, arrays } = await answer.finally(() => signal?.removeEventListener("abort", end));
  if (header.cancelled) signal?.throwIfAborted();
  const answers = header.media as readonly { error?: string; transparent?: boolean }[];
  for (const [index, { hash }] of images.entries()) {
    const { error, transparent: isTransparent } = answers[index] ?? {};
    if (error !== undefined) throw new UnusableImage(hash, error);
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
