/**
 * Requests and answers over a worker's pipes: numbers them, passes each event to its request, and rejects all of them
 * with one error when the worker dies. It does not know the operations.
 */
import { RunError, UserError } from "../../errors.ts";
import { describeSystemFailure } from "../../system-errors.ts";
import { encodeFrame, type Frame, frameParser, type OutgoingArrays } from "./frames.ts";
import type { WorkerProcess } from "./worker-process.ts";

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
