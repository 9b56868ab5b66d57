/** Files that are not usable images, and how the sentences about them begin. */
import { chunk, jpeg, png } from "./pictures.fixture.ts";

const broken = (bytes: Uint8Array, at: number, value: number) => Buffer.from(bytes).fill(value, at, at + 1);
const repeat = (bytes: Uint8Array, count: number) => Buffer.concat(Array.from({ length: count }, () => bytes));
const scans = (count: number) =>
  Buffer.concat([jpeg().subarray(0, 23), repeat(jpeg().subarray(23, -2), count), jpeg().subarray(-2)]);
const segments = (count: number) =>
  Buffer.concat([jpeg().subarray(0, 2), repeat(Buffer.from([0xff, 0xfe, 0, 2]), count), jpeg().subarray(2)]);
const chunks = (name: string, count: number) =>
  Buffer.concat([png().subarray(0, 33), repeat(chunk(name, Buffer.alloc(0)), count), png().subarray(33)]);
const big = { width: 100_000, height: 100_000 };

export const hostileFiles: readonly [name: string, bytes: () => Uint8Array, sentence: string][] = [
  ["nothing", () => new Uint8Array(0), "the image is empty"],
  ["text", () => Buffer.from("hello, I am a picture"), "the image is in an unknown format, not PNG or JPEG"],
  ["a GIF", () => Buffer.from("GIF89a....................."), "the image is a GIF, not PNG or JPEG"],
  ["a WebP", () => Buffer.from("RIFF\x10\0\0\0WEBPVP8 "), "the image is a WebP"],
  ["a BMP", () => Buffer.from("BM            "), "the image is a BMP"],
  ["a TIFF", () => Buffer.from("II*\0        "), "the image is a TIFF"],
  ["a HEIC", () => Buffer.from("\0\0\0\x18ftypheic"), "the image is a HEIC or AVIF"],
  ["an SVG", () => Buffer.from("<svg onload='alert(1)'/>"), "the image is an SVG"],
  ["a PDF", () => Buffer.from("%PDF-1.7"), "the image is a PDF"],
  [
    "a Git LFS pointer",
    () => Buffer.from("version https://git-lfs.github.com/spec/v1\n"),
    "the image is a Git LFS pointer",
  ],
  ["a PNG's signature alone", () => png().subarray(0, 8), "the image is broken: it has no IHDR chunk"],
  ["a PNG without its end", () => png().subarray(0, -12), "the image is broken: it is cut off"],
  ["a PNG cut in a chunk", () => png(50, 50).subarray(0, 45), "the image is broken: it is cut off"],
  ["a PNG whose chunk is longer than the file", () => broken(png(), 33, 0x7f), "the image is broken: it is cut off"],
  [
    "a PNG without pixels",
    () => Buffer.concat([png().subarray(0, 33), png().subarray(-12)]),
    "the image is broken: it has no pixels",
  ],
  ["a PNG of no width", () => png(0, 4), "the image is broken: its size is 0 x 4 pixels"],
  [
    "a decompression bomb",
    () => png(1, 1, [0, 0, 0], big),
    "the image has 100000 x 100000 pixels; the limit is 33.1776 million",
  ],
  ["a JPEG bomb", () => jpeg(65_500, 65_500), "the image has 65500 x 65500 pixels; the limit is 33.1776 million"],
  [
    "a line",
    () => png(1, 1, [0, 0, 0], { width: 30_000, height: 1 }),
    "the image has 30000 x 1 pixels; the longer side may be at most 200 times the shorter side",
  ],
  ["a JPEG cut in its headers", () => jpeg().subarray(0, 14), "the image is broken: it is cut off"],
  ["a JPEG without its end", () => jpeg().subarray(0, -2), "the image is broken: it is cut off"],
  [
    "a JPEG without a size",
    () => Buffer.concat([jpeg().subarray(0, 10), jpeg().subarray(23)]),
    "the image is broken: its pixels come before their size",
  ],
  [
    "a JPEG with a segment of length 0",
    () => broken(jpeg(), 5, 0),
    "the image is broken: the segment at byte 2 has the length 0",
  ],
  ["a JPEG with 101 scans", () => scans(101), "the image has more than 100 scans"],
  ["a JPEG with 2001 comments", () => segments(2001), "the image has more than 2000 segments"],
  [
    "a JPEG with 70,000 bytes of padding",
    () => Buffer.concat([jpeg().subarray(0, 2), Buffer.alloc(70_000, 0xff), jpeg().subarray(2)]),
    "the image has more than 65536 bytes of padding",
  ],
  ["a JPEG without scans", () => scans(0), "the image is broken: it has no pixels"],
  [
    "a JPEG with two sizes",
    () => Buffer.concat([jpeg().subarray(0, 10), jpeg(9, 9).subarray(10, 23), jpeg().subarray(10)]),
    "the image is broken: it states its size twice",
  ],
  ["a JPEG cut after its first scan", () => scans(3).subarray(0, -15), "the image is broken: it is cut off"],
  ["a PNG with 1001 texts", () => chunks("tEXt", 1001), "the image has more than 1000 chunks besides its pixels"],
  [
    "a PNG with two sizes",
    () => Buffer.concat([png().subarray(0, 33), png(9, 9).subarray(8)]),
    "the image is broken: it states its size twice",
  ],
  ["a PNG in 70,000 pieces", () => chunks("IDAT", 70_000), "the image has more than 65536 chunks of pixels"],
  [
    "a JPEG with garbage between segments",
    () => broken(jpeg(), 10, 0),
    "the image is broken: byte 10 is not the start of a segment",
  ],
];
