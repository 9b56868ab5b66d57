/** Reads the type and size of an image from its bytes, without decoding it. */
import { UserError } from "../errors.ts";
import type { ImageType } from "./types.ts";

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

const broken = (reason: string) => new UserError(`the image is broken: ${reason}`);

const pngSignature = [0x89504e47, 0x0d0a1a0a] as const;

const isPng = (view: DataView) =>
  view.byteLength >= 8 && view.getUint32(0) === pngSignature[0] && view.getUint32(4) === pngSignature[1];

/** PNG: chunks of u32 length, name, content, u32 checksum. The first is IHDR, the last IEND. */
function readPng(view: DataView): ImageHeader {
  const nameAt = (at: number) => String.fromCharCode(...[4, 5, 6, 7].map((index) => view.getUint8(at + index)));
  if (view.byteLength < 33 || nameAt(8) !== "IHDR") throw broken("it has no IHDR chunk");
  let hasPixels = false;
  for (let at = 8; at + 12 <= view.byteLength; at += 12 + view.getUint32(at)) {
    const name = nameAt(at);
    if (name === "IDAT") hasPixels = true;
    if (name !== "IEND") continue;
    if (!hasPixels) throw broken("it has no pixels");
    return { type: "image/png", width: view.getUint32(16), height: view.getUint32(20) };
  }
  throw broken("it is cut off");
}

const isJpeg = (view: DataView) => view.byteLength >= 3 && view.getUint16(0) === 0xffd8 && view.getUint8(2) === 0xff;

/** SOF0 to SOF15, without DHT (C4), JPG (C8) and DAC (CC), which lie between them. */
const isFrameHeader = (marker: number) =>
  marker >= 0xc0 && marker <= 0xcf && marker !== 0xc4 && marker !== 0xc8 && marker !== 0xcc;

/** JPEG: segments of 0xFF, marker, u16 length, content. The frame header has the size; the scan after it, the pixels. */
function readJpeg(view: DataView): ImageHeader {
  let size: { width: number; height: number } | undefined;
  let at = 2;
  while (at + 4 <= view.byteLength) {
    if (view.getUint8(at) !== 0xff) throw broken(`byte ${at} is not the start of a segment`);
    const marker = view.getUint8(at + 1);
    if (marker === 0xff) {
      at++;
      continue;
    }
    if (marker === 0xda) {
      if (size === undefined) throw broken("its pixels come before their size");
      if (!endsWithEnd(view, at)) throw broken("it is cut off");
      return { type: "image/jpeg", ...size };
    }
    if (isFrameHeader(marker)) {
      if (at + 9 > view.byteLength) break;
      size = { height: view.getUint16(at + 5), width: view.getUint16(at + 7) };
    }
    const length = view.getUint16(at + 2);
    if (length < 2) throw broken(`the segment at byte ${at} has the length ${length}`);
    at += 2 + length;
  }
  throw broken("it is cut off");
}

/** Whether the end mark (FF D9) follows. Cameras append previews and padding, so it need not be the last. */
function endsWithEnd(view: DataView, from: number): boolean {
  for (let at = view.byteLength - 2; at > from; at--) if (view.getUint16(at) === 0xffd9) return true;
  return false;
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
