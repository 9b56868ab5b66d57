/** Keeps the bytes of images once, by hash: in memory, or in a folder such as a run's `media`. */
import { createHash } from "node:crypto";
import { existsSync, statSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { RunError } from "../errors.ts";
import { writeWhole } from "../files/durable-files.ts";
import { makeFolder } from "../files/make-folder.ts";
import { checkImage } from "./image-limits.ts";
import type { StoredImage } from "./types.ts";

export interface MediaStore {
  /** @throws UserError if the bytes are not an image within the limits */
  add(bytes: Uint8Array): StoredImage;
  /** Whether an image that was added is still in the store. */
  has(image: StoredImage): boolean;
  /** @throws RunError if no image with this hash was added */
  read(hash: string): Promise<Uint8Array>;
}

/** Within a run's folder. */
export const mediaFolder = "media";

/** Maximum number of bytes in a store without a folder; the oldest images are dropped first. */
const maxMemory = 1024 ** 3;

export function memoryStore(most = maxMemory): MediaStore {
  const kept = new Map<string, Uint8Array>();
  let total = 0;
  return {
    add(bytes) {
      const image = describe(bytes);
      if (kept.has(image.hash)) return image;
      kept.set(image.hash, new Uint8Array(bytes));
      total += bytes.length;
      for (const [hash, old] of kept) {
        if (total <= most || hash === image.hash) break;
        kept.delete(hash);
        total -= old.length;
      }
      return image;
    },
    has: ({ hash }) => kept.has(hash),
    async read(hash) {
      const bytes = kept.get(hash);
      if (bytes !== undefined) return bytes;
      throw new RunError(`the image ${hash} is no longer in memory`);
    },
  };
}

/** Files are named `{hash}.png` and `{hash}.jpg`. The folder is made for the first image. */
export function folderStore(folder: string): MediaStore {
  return {
    add(bytes) {
      const image = describe(bytes);
      const file = join(folder, imageFile(image));
      // A copy of the folder may have been interrupted.
      if (statSync(file, { throwIfNoEntry: false })?.size !== bytes.length) {
        makeFolder(folder);
        writeWhole(file, [bytes]);
      }
      return image;
    },
    has: (image) => existsSync(join(folder, imageFile(image))),
    async read(hash) {
      for (const type of ["image/png", "image/jpeg"] as const) {
        const file = join(folder, imageFile({ hash, type }));
        if (existsSync(file)) return readFile(file);
      }
      throw new RunError(`${folder} does not contain the image ${hash}`);
    },
  };
}

/** The name of an image's file. */
export const imageFile = ({ hash, type }: Pick<StoredImage, "hash" | "type">) =>
  `${hash}.${type === "image/png" ? "png" : "jpg"}`;

function describe(bytes: Uint8Array): StoredImage {
  const { type, width, height } = checkImage(bytes);
  return { hash: createHash("sha256").update(bytes).digest("hex"), type, width, height, bytes: bytes.length };
}
