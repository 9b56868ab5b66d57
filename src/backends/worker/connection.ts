/** Messages to a Python worker: frames of a JSON header and bytes, requests and their answers. */
import { delimiter } from "node:path";
import { fileURLToPath } from "node:url";
import { describeSystemFailure, RunError, UserError } from "../../base/errors.ts";
import { ownerMark } from "../../base/files.ts";
import { type Death, type PipedProcess, startProcess } from "../../base/processes.ts";
import type { ModelInfo } from "../engine.ts";
import type { EngineDied } from "../engine-parts.ts";

// The bytes between TypeScript and the worker: `u32 header length | u32 payload length | JSON header | payload`,
// little-endian. It does not know what the messages mean.

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

// Requests and answers over a worker's pipes: numbers them, passes each event to its request, and rejects all of them
// with one error when the worker dies. It does not know the operations.

interface Request {
  readonly id: number;
  /** The final answer. Rejects with UserError or RunError. */
  readonly answer: Promise<Frame>;
  /** A further message under the same id, e.g. a gradient. */
  reply(op: string, arrays?: OutgoingArrays): void;
}

export type Connection = ReturnType<typeof connect>;

interface Pending {
  op: string;
  lastHeard: number;
  onEvent: ((frame: Frame) => void) | undefined;
  resolve(frame: Frame): void;
  reject(error: Error): void;
}

export function connect(worker: WorkerProcess) {
  const pending = new Map<number, Pending>();
  let nextId = 1;
  let failure: Error | null = null;

  function fail(error: Error): void {
    failure ??= error;
    for (const { reject } of pending.values()) reject(failure);
    pending.clear();
  }

  function receive(frame: Frame): void {
    const { id, event, error } = frame.header;
    const request = typeof id === "number" ? pending.get(id) : undefined;
    if (request === undefined)
      throw new RunError(`the worker answered a request that is not open: ${JSON.stringify(frame.header)}`);
    request.lastHeard = performance.now();
    if (event !== undefined) {
      request.onEvent?.(frame);
      return;
    }
    pending.delete(id as number);
    if (error === undefined) request.resolve(frame);
    else request.reject(workerError(request.op, error as WorkerFailure));
  }

  const parse = frameParser(receive);
  worker.output.on("data", (chunk: Buffer) => {
    try {
      parse(chunk);
    } catch (error) {
      // After one bad frame, the next cannot be found.
      fail(error as Error);
      worker.kill();
    }
  });
  void worker.ended.then(fail);

  function send(header: Record<string, unknown>, arrays?: OutgoingArrays): void {
    if (failure === null) worker.input.write(encodeFrame(header, arrays));
  }

  return {
    /** @param onEvent called for each event before the answer; must not throw */
    request(
      op: string,
      fields: Record<string, unknown> = {},
      arrays?: OutgoingArrays,
      onEvent?: (frame: Frame) => void,
    ): Request {
      const id = nextId++;
      const answer = new Promise<Frame>((resolve, reject) => {
        if (failure !== null) return reject(failure);
        pending.set(id, { op, lastHeard: performance.now(), onEvent, resolve, reject });
      });
      send({ ...fields, id, op }, arrays);
      return { id, answer, reply: (replyOp, replyArrays) => send({ id, op: replyOp }, replyArrays) };
    },
    /** Requests without an answer; first the one whose last message is the oldest. */
    waitingFor(): { what: string; seconds: number }[] {
      const now = performance.now();
      return [...pending.values()]
        .map(({ op, lastHeard }) => ({ what: op, seconds: (now - lastHeard) / 1000 }))
        .sort((a, b) => b.seconds - a.seconds);
    },
    /** Stops the worker; requests still open are rejected. */
    async close(): Promise<void> {
      fail(new RunError("the engine was closed"));
      await worker.stop();
    },
  };
}

/** The worker does not have these images: they were never sent, or were dropped. */
export class UnknownMediaError extends Error {
  override name = "UnknownMediaError";
  readonly hashes: readonly string[];

  constructor(message: string, hashes: readonly string[]) {
    super(message);
    this.hashes = hashes;
  }
}

interface WorkerFailure {
  kind: "user" | "run" | "system" | "media" | "internal";
  message: string;
  /** The missing images, if the kind is `media`. */
  hashes?: readonly string[];
  /** If the kind is `system`: the name of the error number, such as ENOSPC, and the file. */
  code?: string;
  path?: string;
  hint?: string;
  trace?: string;
}

function workerError(op: string, { kind, message, hint, trace, code, path, hashes = [] }: WorkerFailure): Error {
  if (kind === "media") return new UnknownMediaError(message, hashes);
  if (kind === "system") {
    const failure = code === undefined ? undefined : describeSystemFailure({ code, path });
    return (
      failure ?? new RunError(`the worker failed in ${op}: ${message}`, { hint: "check the disk and its permissions" })
    );
  }
  if (kind === "run") return new RunError(message, { hint });
  if (kind === "user") return new UserError(message, { hint });
  return new RunError(`the worker failed in ${op}: ${message}`, {
    details: trace?.trimEnd(),
    hint: hint ?? "This is a defect of Hone or of the model's code in transformers; the trace above shows where.",
  });
}

// A Python worker as a process. It does not know messages.

export interface WorkerOptions {
  /** The Python executable. */
  python: string;
  /** Folders with further packages, as in PYTHONPATH. */
  packages?: string | undefined;
  /** A package of `worker/`. */
  module: "hone_worker" | "hone_sharded" | "hone_verl";
  env: Readonly<Record<string, string>>;
  /** The worker's standard error is appended here. */
  logFile?: string | undefined;
  /** Seconds that it has to end before it is killed. */
  graceSeconds: number;
  /** Explains why it ended. */
  died: (death: Death) => EngineDied;
}

export interface WorkerProcess extends Omit<PipedProcess, "ended" | "lastLines"> {
  /** Resolves with the reason when the process has ended; never rejects. */
  readonly ended: Promise<EngineDied>;
}

/** The same relative path from src/ and from dist/. */
const workerDirectory = fileURLToPath(new URL("../../../worker", import.meta.url));

/** @throws RunError when Python cannot be started at all */
export async function startWorker(options: WorkerOptions): Promise<WorkerProcess> {
  const { python, packages, module, env, logFile, graceSeconds, died } = options;
  const worker = await startProcess({
    name: "Python",
    command: python,
    args: ["-m", module],
    env: {
      ...env,
      PYTHONPATH: [workerDirectory, packages, process.env.PYTHONPATH].filter(Boolean).join(delimiter),
      PYTHONUNBUFFERED: "1",
      HONE_OWNER: ownerMark,
      // The worker uses it to notice when Node is killed.
      HONE_PARENT_PID: String(process.pid),
    },
    channel: "pipes",
    logFile,
    graceSeconds,
  });
  return { ...worker, ended: worker.ended.then(died) };
}

// The model and the counters that a worker reports.

export interface WorkerModel extends Pick<ModelInfo, "directory" | "architecture" | "dtype" | "device" | "attention"> {
  parameters: number;
  vocabulary_size: number;
  max_length: number;
  eos_token_ids: number[];
  attention_reason?: string | null;
  /** Null if images are not supported; `images_reason` then has the reason, if the model has a vision part. */
  images?: { placeholder: string; placeholder_id: number } | null;
  images_reason?: string | null;
  /** Mean and standard deviation of a reward model's scores. */
  score_moments?: [mean: number, std: number] | null;
}

export function modelInfo(name: string, info: WorkerModel): ModelInfo {
  const { vocabulary_size: vocabularySize, max_length: maxLength, eos_token_ids: eosTokenIds, ...rest } = info;
  const { attention_reason: attentionReason, score_moments: _, images: __, images_reason: ___, ...own } = rest;
  const model = { ...own, name, vocabularySize, maxLength, eosTokenIds };
  return attentionReason ? { ...model, attentionReason } : model;
}

/** What the model reports about images; the placeholder is absent if it does not support them. */
export const imagesOf = ({ images, images_reason: reason }: WorkerModel) => ({
  placeholder: images ? { text: images.placeholder, id: images.placeholder_id } : undefined,
  reason: reason ?? undefined,
});

export async function workerStats(connection: Connection): Promise<Record<string, number>> {
  const { header } = await connection.request("stats").answer;
  const entries = Object.entries(header.stats as Record<string, unknown>);
  return Object.fromEntries(entries.map(([name, value]) => [name, readNumber(value)]));
}
