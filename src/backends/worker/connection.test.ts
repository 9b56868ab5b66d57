import { PassThrough } from "node:stream";
import fc from "fast-check";
import { describe, expect, it, vi } from "vitest";
import { RunError, UserError } from "../../base/errors.ts";
import {
  connect,
  encodeFrame,
  type Frame,
  frameParser,
  readNumber,
  type TypedArray,
  type WorkerProcess,
} from "./connection.ts";

/** Both ends of a worker's pipes; `received` has what the worker received. */
function pipes() {
  const received: Frame["header"][] = [];
  const [input, output] = [new PassThrough(), new PassThrough()];
  input.on(
    "data",
    frameParser(({ header }) => received.push(header)),
  );
  let die = (_error: RunError): void => {};
  const ended = new Promise<RunError>((resolve) => {
    die = resolve;
  });
  const kill = vi.fn();
  const worker: WorkerProcess = { pid: 1, input, output, ended, stop: async () => {}, kill };
  return {
    connection: connect(worker),
    received,
    die,
    kill,
    output,
    say: (header: object) => output.write(encodeFrame({ ...header })),
  };
}

describe("connect", () => {
  it("passes events and answers to their requests, in any order", async () => {
    const { connection, received, say } = pipes();
    const events: unknown[] = [];
    const first = connection.request("sample", { policy: 3 }, {}, ({ header }) => events.push(header));
    const second = connection.request("stats");
    say({ id: second.id, ok: true, stats: {} });
    say({ id: first.id, event: "sample", request: 0 });
    say({ id: first.id, ok: true });
    await Promise.all([first.answer, second.answer]);
    expect(events).toEqual([{ id: first.id, event: "sample", request: 0 }]);
    expect(received).toEqual([
      { id: 1, op: "sample", policy: 3 },
      { id: 2, op: "stats" },
    ]);
  });

  it("turns the worker's errors into errors of their kind, and stays usable", async () => {
    const { connection, say } = pipes();
    const bad = connection.request("load");
    say({ id: bad.id, error: { kind: "user", message: "no such model", hint: "check" } });
    await expect(bad.answer).rejects.toEqual(new UserError("no such model", { hint: "check" }));
    const full = connection.request("save_state");
    say({ id: full.id, error: { kind: "system", code: "ENOSPC", path: "/runs/a", message: "[Errno 28] ..." } });
    await expect(full.answer).rejects.toMatchObject({ exitCode: 1, message: "/runs/a: the disk is full (ENOSPC)" });
    const broken = connection.request("forward");
    say({ id: broken.id, error: { kind: "internal", message: "shape", trace: "File x.py" } });
    await expect(broken.answer).rejects.toMatchObject({
      message: "the worker failed in forward: shape",
      details: "File x.py",
    });
    const fine = connection.request("stats");
    say({ id: fine.id, ok: true });
    await fine.answer;
  });

  it("fails all open and later requests with the worker's death", async () => {
    const { connection, die, received } = pipes();
    const open = [connection.request("sample"), connection.request("forward")];
    die(new RunError("the worker ended"));
    for (const { answer } of open) await expect(answer).rejects.toThrow("the worker ended");
    await expect(connection.request("stats").answer).rejects.toThrow("the worker ended");
    expect(received).toHaveLength(2);
  });

  it("kills a worker that writes anything but messages", async () => {
    const { connection, output, kill } = pipes();
    const open = connection.request("stats");
    output.write("Segmentation fault, core dumped");
    await expect(open.answer).rejects.toThrow(/not a message/);
    expect(kill).toHaveBeenCalled();
  });

  it("lists the silent requests, the longest first", async () => {
    vi.useFakeTimers({ toFake: ["performance"] });
    const { connection, say } = pipes();
    const sample = connection.request("sample", {}, {}, () => {});
    vi.advanceTimersByTime(3000);
    connection.request("stats");
    vi.advanceTimersByTime(1000);
    expect(connection.waitingFor()).toEqual([
      { what: "sample", seconds: 4 },
      { what: "stats", seconds: 1 },
    ]);
    say({ id: sample.id, event: "token" });
    vi.useRealTimers();
    await new Promise(setImmediate);
    expect(connection.waitingFor()[0]?.what).toBe("stats");
  });
});

const arrays = fc.oneof(
  fc.int32Array({ maxLength: 20 }),
  fc.float32Array({ maxLength: 20 }),
  fc.uint8Array({ maxLength: 20 }),
  fc.bigInt64Array({ maxLength: 20 }),
) as fc.Arbitrary<TypedArray>;
const messages = fc.array(
  fc.record({
    text: fc.string({ unit: "grapheme" }),
    arrays: fc.dictionary(fc.stringMatching(/^[a-z]{1,8}$/), arrays, { maxKeys: 4 }),
  }),
  { maxLength: 6 },
);

function parse(stream: Buffer, cuts: readonly number[]): Frame[] {
  const frames: Frame[] = [];
  const push = frameParser((frame) => frames.push(frame));
  let start = 0;
  for (const end of [...cuts.map((cut) => cut % (stream.length + 1)).sort((a, b) => a - b), stream.length]) {
    push(stream.subarray(start, end));
    start = end;
  }
  return frames;
}

describe("frames", () => {
  it("come back as they were sent, wherever the stream is cut", () => {
    fc.assert(
      fc.property(messages, fc.array(fc.nat(), { maxLength: 40 }), (sent, cuts) => {
        const stream = Buffer.concat(sent.map((message) => encodeFrame({ text: message.text }, message.arrays)));
        const received = parse(stream, cuts);
        expect(received.map((frame) => frame.header)).toEqual(sent.map(({ text }) => ({ text })));
        expect(received.map((frame) => Object.entries(frame.arrays).map(([name, { data }]) => [name, data]))).toEqual(
          sent.map((message) => Object.entries(message.arrays)),
        );
      }),
    );
  });

  it("keep shapes and copy out of the stream's memory", () => {
    const stream = encodeFrame({ id: 1 }, { top: { data: new Int32Array([1, 2, 3, 4, 5, 6]), shape: [2, 3] } });
    const [frame] = parse(stream, [3]);
    stream.fill(0);
    expect(frame).toEqual({
      header: { id: 1 },
      arrays: { top: { data: new Int32Array([1, 2, 3, 4, 5, 6]), shape: [2, 3] } },
    });
  });

  it("pad each array to 8 bytes", () => {
    const frame = encodeFrame({}, { a: new Uint8Array([7]), b: new Int32Array([9]) });
    expect(frame.readUInt32LE(4)).toBe(16);
    expect([frame.at(-16), frame.at(-8)]).toEqual([7, 9]);
  });

  it.each([Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, 1.5, 0])("carry the number %s", (number) => {
    const [frame] = parse(encodeFrame({ number }), []);
    expect(readNumber(frame!.header.number)).toBe(number);
  });

  it.each([
    ["text instead of frames", Buffer.from("Traceback (most recent call last):\n"), /not a message/],
    ["an array longer than its payload", forged([{ name: "x", dtype: "f32", shape: [3] }]), /"x" is longer/],
  ])("refuse %s", (_what, stream, message) => {
    expect(() => parse(stream, [])).toThrow(message);
  });

  it("refuse a word instead of a number", () => expect(() => readNumber("nan")).toThrow(/instead of a number/));
});

function forged(described: object[]): Buffer {
  const header = Buffer.from(JSON.stringify({ arrays: described }));
  const lengths = Buffer.alloc(8);
  lengths.writeUInt32LE(header.length, 0);
  return Buffer.concat([lengths, header]);
}
