/**
 * Images as users give them and as Hone keeps them: checked from their bytes without decoding, and stored once, by hash.
 *
 * A prompt is tokens and media: an entry `{ at, length, hash }` says which tokens stand for which image. The worker determines these tokens
 * (`put_media`), so TypeScript needs no image processor and the worker gets no text. A range marks the place, because a model may sample
 * its own image token, which is then an ordinary token; text that contains the placeholder is refused. Conversations are compared by hashes:
 * two images of the same size have the same tokens. Bytes are sent once; a worker that has dropped some names the missing hashes before it
 * computes anything, and gets them again. Reward models read text: the score of a conversation with images is unknown.
 */
import { createHash } from "node:crypto";
import { existsSync, statSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { RunError, UserError } from "../base/errors.ts";
import { formatBytes, makeFolder, writeWhole } from "../base/files.ts";

/**
 * The bytes of a PNG or JPEG file, also in base64; a data URL, an http(s) URL or the path of such a file; an image of a data set;
 * or an image that is stored.
 */
export type ImageSource = Uint8Array | ArrayBuffer | Blob | URL | string | ParquetImage | StoredImage | ClientImage;

/** Hugging Face's datasets store images as bytes, or as a path if they are not embedded. */
export interface ParquetImage {
  /** Text is base64, as in a data set of JSON lines. */
  bytes?: Uint8Array | string | null;
  path?: string | null;
}

/** The data URL or http(s) URL that a client of a server sent. Never a file of this machine. */
export interface ClientImage {
  address: string;
}

export type ImageType = "image/png" | "image/jpeg";

/** An image in a `MediaStore`. */
export interface StoredImage {
  /** SHA-256 of the file's bytes, in lowercase hexadecimal. */
  hash: string;
  type: ImageType;
  /** In pixels, as in the file: before any rotation that its EXIF data asks for. */
  width: number;
  height: number;
  /** Size of the file. */
  bytes: number;
}

/** An image within a token sequence: `tokens[at .. at + length)` stand for it. */
export interface Media {
  at: number;
  length: number;
  hash: string;
}

// Reads the type and size of an image from its bytes, without decoding it.

export interface ImageHeader {
  type: ImageType;
  width: number;
  height: number;
}

/** @throws UserError if the bytes are not a whole PNG or JPEG file */
export function readImageHeader(bytes: Uint8Array): ImageHeader {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const header = isPng(view) ? readPng(view) : isJpeg(view) ? readJpeg(view) : undefined;
  if (header === undefined) {
    throw new UserError(bytes.length === 0 ? "the image is empty" : `the image is ${nameFormat(bytes)}`, {
      hint: "convert it to PNG or JPEG",
    });
  }
  const { width, height } = header;
  if (width === 0 || height === 0) throw broken(`its size is ${width} x ${height} pixels`);
  return header;
}

/** A decoder's time grows with these numbers, also in a small file. Usual files have 10 scans and a few chunks or segments. */
const most = { scans: 100, segments: 2000, padding: 65_536, chunks: 1000, pixelChunks: 65_536 };

function requireFew(count: number, limit: number, what: string): void {
  if (count > limit) throw new UserError(`the image has more than ${limit} ${what}`, { hint: "save it again" });
}

const broken = (reason: string) => new UserError(`the image is broken: ${reason}`);

const pngSignature = [0x89504e47, 0x0d0a1a0a] as const;

const isPng = (view: DataView) =>
  view.byteLength >= 8 && view.getUint32(0) === pngSignature[0] && view.getUint32(4) === pngSignature[1];

const [IHDR, IDAT, IEND] = [0x49484452, 0x49444154, 0x49454e44];

/**
 * PNG: chunks of u32 length, name, content, u32 checksum. The first is IHDR, the last IEND. Decoders take time for each chunk,
 * even if it is empty.
 */
function readPng(view: DataView): ImageHeader {
  if (view.byteLength < 33 || view.getUint32(12) !== IHDR) throw broken("it has no IHDR chunk");
  let [pixels, others] = [0, 0];
  for (let at = 8; at + 12 <= view.byteLength; at += 12 + view.getUint32(at)) {
    const name = view.getUint32(at + 4);
    if (name === IEND) {
      if (pixels === 0) throw broken("it has no pixels");
      return { type: "image/png", width: view.getUint32(16), height: view.getUint32(20) };
    }
    if (name === IHDR && at > 8) throw broken("it states its size twice");
    if (name === IDAT) requireFew(++pixels, most.pixelChunks, "chunks of pixels");
    else requireFew(++others, most.chunks, "chunks besides its pixels");
  }
  throw broken("it is cut off");
}

const isJpeg = (view: DataView) => view.byteLength >= 3 && view.getUint16(0) === 0xffd8 && view.getUint8(2) === 0xff;

/** SOF0 to SOF15, without DHT (C4), JPG (C8) and DAC (CC), which lie between them. */
const isFrameHeader = (marker: number) =>
  marker >= 0xc0 && marker <= 0xcf && marker !== 0xc4 && marker !== 0xc8 && marker !== 0xcc;

/**
 * JPEG: segments of 0xFF, marker, u16 length, content, with any number of 0xFF before a marker. A frame header has the size; the
 * pixels follow a scan header, without a length. A progressive file has several scans, each of which visits all pixels.
 */
function readJpeg(view: DataView): ImageHeader {
  let size: { width: number; height: number } | undefined;
  let [scans, segments, padding] = [0, 0, 0];
  let at = 2;
  while (at + 2 <= view.byteLength) {
    if (view.getUint8(at) !== 0xff) throw broken(`byte ${at} is not the start of a segment`);
    const marker = view.getUint8(at + 1);
    if (marker === 0xff) {
      requireFew(++padding, most.padding, "bytes of padding");
      at++;
      continue;
    }
    // Cameras append previews and padding after the end.
    if (marker === 0xd9) {
      if (size === undefined || scans === 0) throw broken("it has no pixels");
      return { type: "image/jpeg", ...size };
    }
    if (at + 4 > view.byteLength) break;
    if (isFrameHeader(marker)) {
      if (size !== undefined) throw broken("it states its size twice");
      if (at + 9 > view.byteLength) break;
      size = { height: view.getUint16(at + 5), width: view.getUint16(at + 7) };
    }
    const length = view.getUint16(at + 2);
    if (length < 2) throw broken(`the segment at byte ${at} has the length ${length}`);
    at += 2 + length;
    if (marker !== 0xda) {
      requireFew(++segments, most.segments, "segments");
      continue;
    }
    if (size === undefined) throw broken("its pixels come before their size");
    requireFew(++scans, most.scans, "scans");
    at = endOfPixels(view, at);
  }
  throw broken("it is cut off");
}

/** Where the next segment starts: within pixels, 0xFF is followed by 0 or by a restart marker (D0 to D7). */
function endOfPixels(view: DataView, from: number): number {
  for (let at = from; at + 1 < view.byteLength; at++) {
    if (view.getUint8(at) !== 0xff) continue;
    const next = view.getUint8(at + 1);
    if (next !== 0 && (next < 0xd0 || next > 0xd7)) return at;
  }
  return view.byteLength;
}

const signatures: readonly (readonly [name: string, at: number, text: string])[] = [
  ["a GIF", 0, "GIF8"],
  ["a WebP", 8, "WEBP"],
  ["a BMP", 0, "BM"],
  ["a TIFF", 0, "II*\0"],
  ["a TIFF", 0, "MM\0*"],
  ["a HEIC or AVIF", 4, "ftyp"],
  ["a PDF", 0, "%PDF"],
  ["an SVG", 0, "<svg"],
  ["a web page", 0, "<!"],
  ["a web page", 0, "<html"],
  ["a Git LFS pointer", 0, "version https://git-lfs"],
  ["compressed (gzip)", 0, "\x1f\x8b"],
  ["an archive (zip)", 0, "PK"],
];

function nameFormat(bytes: Uint8Array): string {
  const start = Buffer.from(bytes.subarray(0, 64)).toString("latin1");
  const found = signatures.find(([, at, text]) => start.startsWith(text, at));
  return `${found?.[0] ?? "in an unknown format"}, not PNG or JPEG`;
}

// Limits of a single image and of a request. The worker decodes images, so they are checked before it sees them.

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

/** The worker cannot decode an image that passed the checks before. */
export class UnusableImage extends UserError {
  readonly hash: string;
  readonly reason: string;

  constructor(hash: string, reason: string) {
    super(`the image ${hash.slice(0, 12)} cannot be used: ${reason}`);
    this.hash = hash;
    this.reason = reason;
  }
}

// Keeps the bytes of images once, by hash: in memory, or in a folder such as a run's `media`.

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
