/** Changes PNG and JPEG files along their structure: chunks, segments, scans, sizes and lengths. */
import { crc32, deflateSync } from "node:zlib";
import { randomInteger } from "../base/values.ts";

type Random = () => number;

/** Chunks of a PNG, or segments of a JPEG with the pixels after them; the first part is the signature. */
function partsOf(file: Buffer): Buffer[] {
  const parts: Buffer[] = [];
  const isPng = file[0] === 0x89;
  let at = isPng ? 8 : 2;
  parts.push(file.subarray(0, at));
  while (at < file.length) {
    let end = isPng ? at + 12 + (at + 4 <= file.length ? file.readUInt32BE(at) : 0) : nextSegment(file, at);
    end = Math.min(file.length, end);
    parts.push(file.subarray(at, end));
    at = end;
  }
  return parts;
}

function nextSegment(file: Buffer, from: number): number {
  const length = from + 4 <= file.length ? file.readUInt16BE(from + 2) : 0;
  let at = from + 2 + (file[from + 1] === 0xd9 ? 0 : length);
  while (at + 1 < file.length && !(file[at] === 0xff && ![0, ...restarts].includes(file[at + 1]!))) at++;
  return Math.max(at, from + 1);
}

const restarts = [0xd0, 0xd1, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7];

function pngChunk(name: string, content: Uint8Array): Buffer {
  const body = Buffer.concat([Buffer.from(name, "latin1"), content]);
  const ends = Buffer.alloc(8);
  ends.writeUInt32BE(content.length);
  ends.writeUInt32BE(crc32(body), 4);
  return Buffer.concat([ends.subarray(0, 4), body, ends.subarray(4)]);
}

function jpegSegment(marker: number, content: Uint8Array): Buffer {
  const head = Buffer.from([0xff, marker, 0, 0]);
  head.writeUInt16BE(Math.min(65_535, content.length + 2), 2);
  return Buffer.concat([head, content.subarray(0, 65_533)]);
}

const noise = (random: Random, length: number) =>
  Buffer.from(Array.from({ length }, () => randomInteger(random, 0, 255)));
const pick = <T>(random: Random, from: readonly T[]): T => from[randomInteger(random, 0, from.length - 1)]!;

const pngNames = [
  "IHDR",
  "PLTE",
  "IDAT",
  "IEND",
  "tRNS",
  "zTXt",
  "iTXt",
  "tEXt",
  "iCCP",
  "eXIf",
  "acTL",
  "fcTL",
  "fdAT",
];
const jpegMarkers = [
  0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc9, 0xca, 0xcc, 0xd8, 0xd9, 0xda, 0xdb, 0xdc, 0xdd, 0xe0, 0xe1, 0xe2, 0xee, 0xfe,
];

/** A part that decoders interpret: compressed text, a color profile, EXIF data, tables, or noise. */
function newPart(random: Random, isPng: boolean): Buffer {
  const packed = deflateSync(Buffer.alloc(pick(random, [10, 100_000, 3_000_000])));
  const exif = Buffer.concat([Buffer.from("MM\0*\0\0\0\x08", "latin1"), noise(random, pick(random, [2, 60, 600]))]);
  const content = pick(random, [
    () => Buffer.concat([Buffer.from("name\0\0"), packed]),
    () => (isPng ? exif : Buffer.concat([Buffer.from("Exif\0\0"), exif])),
    () => Buffer.concat([Buffer.from("MPF\0"), exif]),
    () => Buffer.concat([Buffer.from("ICC_PROFILE\0\x01\x01"), noise(random, 300)]),
    () => noise(random, pick(random, [0, 1, 8, 13, 26, 700])),
  ])();
  return isPng ? pngChunk(pick(random, pngNames), content) : jpegSegment(pick(random, jpegMarkers), content);
}

/** A valid checksum lets a changed chunk reach the decoder. */
function repairChecksum(part: Buffer): Buffer {
  if (part.length < 12) return part;
  const fixed = Buffer.from(part);
  fixed.writeUInt32BE(crc32(fixed.subarray(4, -4)), fixed.length - 4);
  return fixed;
}

function changeBytes(random: Random, part: Buffer): Buffer {
  const changed = Buffer.from(part);
  const count = pick(random, [1, 1, 2, 8]);
  for (let index = 0; index < count && changed.length > 0; index++) {
    // Most settings are at the start of a part.
    const at = randomInteger(random, 0, Math.min(changed.length, pick(random, [24, changed.length])) - 1);
    changed[at] = pick(random, [0, 1, 0x7f, 0x80, 0xff, randomInteger(random, 0, 255)]);
  }
  return changed;
}

type Mutation = (random: Random, parts: Buffer[], isPng: boolean, other: Buffer) => void;

const place = (random: Random, parts: readonly Buffer[]) => randomInteger(random, 0, parts.length - 1);

const mutations: readonly Mutation[] = [
  (random, parts, isPng) => {
    const at = place(random, parts);
    const changed = changeBytes(random, parts[at]!);
    parts[at] = isPng && at > 0 && random() < 0.8 ? repairChecksum(changed) : changed;
  },
  (random, parts) => parts.splice(place(random, parts), 1),
  (random, parts) => {
    const at = place(random, parts);
    const count = parts[at]!.length > 10_000 ? 2 : pick(random, [1, 2, 30, 98, 300, 1500]);
    parts.splice(at, 0, ...Array.from({ length: count }, () => parts[at]!));
  },
  (random, parts) => {
    const [left, right] = [place(random, parts), place(random, parts)];
    [parts[left], parts[right]] = [parts[right]!, parts[left]!];
  },
  (random, parts, isPng) => parts.splice(place(random, parts) + 1, 0, newPart(random, isPng)),
  (random, parts) => {
    const at = place(random, parts);
    parts[at] = parts[at]!.subarray(0, randomInteger(random, 0, parts[at]!.length));
  },
  (random, parts, _, other) => parts.splice(place(random, parts) + 1, 0, pick(random, partsOf(other))),
  // Another size: of a PNG's IHDR, of a JPEG's frame header.
  (random, parts, isPng) => {
    const at = parts.findIndex((part) =>
      isPng ? part.toString("latin1", 4, 8) === "IHDR" : (part[1]! & 0xf0) === 0xc0,
    );
    const [part, size] = [Buffer.from(parts[at] ?? []), () => pick(random, [0, 1, 7, 64, 640, 5000, 65_535])];
    if (part.length < (isPng ? 16 : 9)) return;
    if (isPng) part.writeUInt32BE(size(), pick(random, [8, 12]));
    else part.writeUInt16BE(size(), pick(random, [5, 7]));
    parts[at] = isPng ? repairChecksum(part) : part;
  },
];

/** One to four changes, then sometimes a cut at any byte. */
export function mutateImage(random: Random, files: readonly Buffer[]): Buffer {
  const file = pick(random, files);
  const isPng = file[0] === 0x89;
  const parts = partsOf(file);
  for (let count = randomInteger(random, 1, 4); count > 0; count--) {
    pick(random, mutations)(random, parts, isPng, pick(random, files));
    if (parts.length === 0) parts.push(file);
  }
  const whole = Buffer.concat(parts);
  return random() < 0.1 ? whole.subarray(0, randomInteger(random, 0, whole.length)) : whole;
}
