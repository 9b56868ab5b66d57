import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { encodeFrame, type Frame, frameParser, readNumber, type TypedArray } from "./frames.ts";

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
