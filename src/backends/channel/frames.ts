/**
 * The bytes between TypeScript and the worker: `u32 header length | u32 payload length | JSON header | payload`,
 * little-endian. It does not know what the messages mean.
 */
import { RunError } from "../../errors.ts";

export type TypedArray = Int16Array | Int32Array | Float32Array | Uint8Array | BigInt64Array;

export interface FrameArray {
  data: TypedArray;
  /** Row-major; its product is the length of `data`. */
  shape: number[];
}

export interface Frame {
  header: Record<string, unknown>;
  arrays: Record<string, FrameArray>;
}

/** A plain typed array is one-dimensional. */
export type OutgoingArrays = Record<string, TypedArray | FrameArray>;

const constructors = {
  i16: Int16Array,
  i32: Int32Array,
  f32: Float32Array,
  u8: Uint8Array,
  i64: BigInt64Array,
} as const;
type DtypeName = keyof typeof constructors;

interface ArrayDescription {
  name: string;
  dtype: DtypeName;
  shape: number[];
}

const alignment = 8;
const maxU32 = 2 ** 32 - 1;
/** A longer header means that the stream does not consist of frames. */
const maxHeaderBytes = 2 ** 26;

const padded = (bytes: number): number => Math.ceil(bytes / alignment) * alignment;

function dtypeOf(data: TypedArray): DtypeName {
  if (data instanceof Int16Array) return "i16";
  if (data instanceof Int32Array) return "i32";
  if (data instanceof Float32Array) return "f32";
  return data instanceof Uint8Array ? "u8" : "i64";
}

/** @throws RunError when the arrays together exceed 4 GiB, the most that one frame can hold */
export function encodeFrame(header: Record<string, unknown>, arrays: OutgoingArrays = {}): Buffer {
  const parts = Object.entries(arrays).map(([name, value]) => {
    const { data, shape } = "data" in value ? value : { data: value, shape: [value.length] };
    return { data, description: { name, dtype: dtypeOf(data), shape } satisfies ArrayDescription };
  });
  const descriptions = parts.map((part) => part.description);
  const headerBytes = Buffer.from(
    JSON.stringify(parts.length > 0 ? { ...header, arrays: descriptions } : header, spell),
  );
  const payloadLength = parts.reduce((total, part) => total + padded(part.data.byteLength), 0);
  if (payloadLength > maxU32)
    throw new RunError(`a message of ${payloadLength} bytes exceeds 4 GiB, the limit of one message`);

  const frame = Buffer.alloc(8 + headerBytes.length + payloadLength);
  frame.writeUInt32LE(headerBytes.length, 0);
  frame.writeUInt32LE(payloadLength, 4);
  headerBytes.copy(frame, 8);
  let position = 8 + headerBytes.length;
  for (const { data } of parts) {
    frame.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), position);
    position += padded(data.byteLength);
  }
  return frame;
}

/** JSON has no NaN and infinities, so they are sent as text. */
const spell = (_key: string, value: unknown): unknown =>
  typeof value === "number" && !Number.isFinite(value) ? String(value) : value;

/** Reads a number that `spell` wrote. */
export function readNumber(value: unknown): number {
  if (typeof value === "number") return value;
  if (value === "NaN" || value === "Infinity" || value === "-Infinity") return Number(value);
  throw new RunError(`the worker sent ${JSON.stringify(value)} instead of a number`);
}

function decodeFrame(headerBytes: Buffer, payload: Buffer): Frame {
  const { arrays: described = [], ...header } = JSON.parse(headerBytes.toString("utf8")) as {
    arrays?: ArrayDescription[];
  };
  const arrays: Record<string, FrameArray> = {};
  let position = 0;
  for (const { name, dtype, shape } of described) {
    const make = constructors[dtype];
    const length = shape.reduce((product, size) => product * size, 1);
    const bytes = length * make.BYTES_PER_ELEMENT;
    if (position + bytes > payload.length)
      throw new RunError(`the worker's array "${name}" is longer than its message`);
    // Copied so that the array starts at an aligned address.
    const copy = new Uint8Array(payload.subarray(position, position + bytes));
    arrays[name] = { data: new make(copy.buffer), shape };
    position += padded(bytes);
  }
  return { header, arrays };
}

/**
 * @returns a function that takes the stream's chunks, cut anywhere, and calls `onFrame` for each complete frame
 * @throws RunError when the stream does not consist of frames
 */
export function frameParser(onFrame: (frame: Frame) => void): (chunk: Buffer) => void {
  let chunks: Buffer[] = [];
  let available = 0;
  let needed = 8;
  return (chunk) => {
    chunks.push(chunk);
    available += chunk.length;
    // Chunks are joined once a frame is complete, so that a large frame is copied only once.
    while (available >= needed) {
      const buffer = chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks);
      chunks = [buffer];
      const headerLength = buffer.readUInt32LE(0);
      const payloadLength = buffer.readUInt32LE(4);
      if (headerLength > maxHeaderBytes) throw new RunError("the worker wrote something that is not a message");
      needed = 8 + headerLength + payloadLength;
      if (available < needed) return;
      const rest = buffer.subarray(needed);
      const frame = decodeFrame(buffer.subarray(8, 8 + headerLength), buffer.subarray(8 + headerLength, needed));
      chunks = rest.length > 0 ? [rest] : [];
      available = rest.length;
      needed = 8;
      onFrame(frame);
    }
  };
}
