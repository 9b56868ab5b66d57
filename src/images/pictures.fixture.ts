/** Small PNG and JPEG files for tests, written byte by byte. */
import { crc32, deflateSync } from "node:zlib";

/** A chunk of a PNG. */
export const chunk = (name: string, content: Uint8Array) => {
  const body = Buffer.concat([Buffer.from(name, "latin1"), content]);
  const [length, checksum] = [Buffer.alloc(4), Buffer.alloc(4)];
  length.writeUInt32BE(content.length);
  checksum.writeUInt32BE(crc32(body));
  return Buffer.concat([length, body, checksum]);
};

/** A PNG of one color. `claimed`: the size that its header states, if another. */
export function png(
  width = 2,
  height = 2,
  [red, green, blue]: readonly [number, number, number] = [200, 30, 30],
  claimed = { width, height },
): Buffer {
  const header = Buffer.alloc(13);
  header.writeUInt32BE(claimed.width, 0);
  header.writeUInt32BE(claimed.height, 4);
  header.set([8, 2, 0, 0, 0], 8);
  const row = Buffer.from([0, ...Array.from({ length: width }, () => [red, green, blue]).flat()]);
  const pixels = deflateSync(Buffer.concat(Array.from({ length: height }, () => row)));
  const signature = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]);
  return Buffer.concat([signature, chunk("IHDR", header), chunk("IDAT", pixels), chunk("IEND", Buffer.alloc(0))]);
}

/** The segments of a JPEG: its headers are real, its scan is not. */
export function jpeg(width = 2, height = 2): Buffer {
  const frame = Buffer.from([0xff, 0xc0, 0, 11, 8, height >> 8, height & 255, width >> 8, width & 255, 1, 1, 0x11, 0]);
  const comment = Buffer.from([0xff, 0xfe, 0, 6, 1, 2, 3, 4]);
  const scan = Buffer.from([0xff, 0xda, 0, 8, 1, 1, 0, 0, 63, 0, 1, 2, 3]);
  return Buffer.concat([Buffer.from([0xff, 0xd8]), comment, frame, scan, Buffer.from([0xff, 0xd9])]);
}

export const dataUrl = (bytes: Uint8Array, type = "image/png") =>
  `data:${type};base64,${Buffer.from(bytes).toString("base64")}`;
