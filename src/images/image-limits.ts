/** Limits of a single image and of a request. The worker decodes images, so they are checked before it sees them. */
import { UserError } from "../errors.ts";
import { formatBytes } from "../files/durable-files.ts";
import { readImageHeader } from "./image-header.ts";
import type { ImageType } from "./types.ts";

export const imageLimits = {
  /** Size of the file. */
  bytes: 20 * 1024 * 1024,
  /** Width times height, as of an 8K screen: a small file may decompress to any size. */
  pixels: 7680 * 4320,
  /** Longer side divided by the shorter side. */
  ratio: 200,
  /** Number of images in the messages of one model call. */
  perRequest: 64,
  fetchSeconds: 30,
} as const;

/** @throws UserError if the bytes are not an image within the limits; the sentence begins with "the image" */
export function checkImage(bytes: Uint8Array): { type: ImageType; width: number; height: number } {
  requireSize(bytes.length);
  const header = readImageHeader(bytes);
  const { width, height } = header;
  const { pixels, ratio } = imageLimits;
  if (width * height > pixels) {
    throw new UserError(`the image has ${width} x ${height} pixels; the limit is ${pixels / 1e6} million`);
  }
  if (Math.max(width / height, height / width) > ratio) {
    throw new UserError(
      `the image has ${width} x ${height} pixels; the longer side may be at most ${ratio} times the shorter side`,
    );
  }
  return header;
}

export function requireSize(bytes: number): void {
  if (bytes <= imageLimits.bytes) return;
  throw new UserError(`the image has ${formatBytes(bytes)}; the limit is ${formatBytes(imageLimits.bytes)}`);
}
