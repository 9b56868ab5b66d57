import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { beforeEach, describe, expect, it } from "vitest";
import { testFolder } from "../temporary-folder.fixture.ts";
import { crc32c, tensorboardSubscriber } from "./tensorboard.ts";

const ascii = (text: string) => new TextEncoder().encode(text);

// The test vectors of RFC 3720, B.4, and the customary check value.
it.each([
  [ascii("123456789"), 0xe3069283],
  [new Uint8Array(32), 0x8a9136aa],
  [new Uint8Array(32).fill(0xff), 0x62a8ab43],
  [Uint8Array.from({ length: 32 }, (_, index) => index), 0x46dd794e],
  [new Uint8Array(0), 0],
])("crc32c of %o", (bytes, crc) => expect(crc32c(bytes)).toBe(crc));

type Field = [field: number, value: Buffer | number];

/** A message's fields in order: number and value (bytes of length-delimited fields, else a number). */
function parseMessage(bytes: Buffer): Field[] {
  const fields: Field[] = [];
  let at = 0;
  const varint = () => {
    let value = 0;
    for (let shift = 0; ; shift += 7) {
      const byte = bytes[at++]!;
      value += (byte & 127) * 2 ** shift;
      if (byte < 128) return value;
    }
  };
  while (at < bytes.length) {
    const key = varint();
    const take = (length: number) => {
      at += length;
      return bytes.subarray(at - length, at);
    };
    const kind = key & 7;
    if (kind === 0) fields.push([key >>> 3, varint()]);
    else if (kind === 1) fields.push([key >>> 3, take(8).readDoubleLE()]);
    else if (kind === 5) fields.push([key >>> 3, take(4).readFloatLE()]);
    else fields.push([key >>> 3, take(varint())]);
  }
  return fields;
}

function parseRecords(file: Buffer): Buffer[] {
  const unmask = (stored: number) => {
    const rotated = (stored - 0xa282ead8) >>> 0;
    return ((rotated << 15) | (rotated >>> 17)) >>> 0;
  };
  const records: Buffer[] = [];
  for (let at = 0; at < file.length; ) {
    const length = Number(file.readBigUInt64LE(at));
    expect(unmask(file.readUInt32LE(at + 8))).toBe(crc32c(file.subarray(at, at + 8)));
    const data = file.subarray(at + 12, at + 12 + length);
    expect(unmask(file.readUInt32LE(at + 12 + length))).toBe(crc32c(data));
    records.push(data);
    at += 16 + length;
  }
  return records;
}

describe("tensorboardSubscriber", () => {
  let directory: string;
  beforeEach(() => {
    directory = testFolder("tensorboard");
  });
  const events = () => {
    const names = readdirSync(directory);
    expect(names).toEqual([expect.stringMatching(/^events\.out\.tfevents\.1700000000\./)]);
    return parseRecords(readFileSync(join(directory, names[0]!))).map(parseMessage);
  };
  const open = () => tensorboardSubscriber(directory, () => 1_700_000_000_500);

  it("writes metrics that can be parsed again, zeros too", () => {
    const subscriber = open();
    subscriber.event({ type: "run-start", folder: "", totalSteps: 9, step: 0, history: [], text: [] });
    subscriber.event({ type: "health", text: "not a metric" });
    const metrics = { "reward/ü/mean": 0.5, lost: Number.NaN, none: 0 };
    subscriber.event({ type: "step-end", step: 3_000_000_000, total: 9, epoch: 0, metrics, seconds: 1 });
    subscriber.event({ type: "validation-end", step: 1, metrics: { "val/reward": 0.25 }, seconds: 1 });
    const [version, step, validation, ...rest] = events();
    expect(rest).toEqual([]);
    expect(version).toEqual([
      [1, 1_700_000_000.5],
      [3, Buffer.from("brain.Event:2")],
    ]);
    expect(step?.slice(0, 2)).toEqual([
      [1, 1_700_000_000.5],
      [2, 3_000_000_000],
    ]);
    const values = (event: typeof step) =>
      parseMessage(event!.find(([field]) => field === 5)![1] as Buffer).map(([field, value]) => {
        expect(field).toBe(1);
        const [tag, number] = parseMessage(value as Buffer);
        return [tag![0], String(tag![1]), number![0], number![1]];
      });
    expect(values(step)).toEqual([
      [1, "reward/ü/mean", 2, 0.5],
      [1, "lost", 2, Number.NaN],
      [1, "none", 2, 0],
    ]);
    expect(values(validation)).toEqual([[1, "val/reward", 2, 0.25]]);
  });

  it("writes samples as text that TensorBoard shows", () => {
    const row = { task: "sums/0:0", prompt: "2+2?\n", reply: "<b>|4", reward: 1, reason: "right" };
    open().event({ type: "samples", step: 5, kind: "validation", rows: [row] });
    const [, event] = events();
    const summary = parseMessage(event!.find(([field]) => field === 5)![1] as Buffer);
    const [tag, tensor, metadata] = parseMessage(summary[0]![1] as Buffer);
    expect(String(tag![1])).toBe("samples/validation");
    const [type, shape, content] = parseMessage(tensor![1] as Buffer);
    expect([type, shape]).toEqual([
      [1, 7],
      [2, Buffer.from([18, 2, 8, 1])],
    ]);
    expect(String(content![1])).toContain("| sums/0:0 | 2+2?  | &lt;b>\\|4 | 1 | right |");
    expect([tensor![0], metadata![0]]).toEqual([8, 9]);
    expect(String(parseMessage(parseMessage(metadata![1] as Buffer)[0]![1] as Buffer)[0]![1])).toBe("text");
  });

  it("writes distributions as histograms and plots as images", () => {
    const subscriber = open();
    const values = { response_length: [2, 2, 66], reward: [Number.NaN], entropy: [] };
    subscriber.event({ type: "distributions", step: 5, values, limit: 9 });
    const bytes = Buffer.from("a picture");
    subscriber.event({ type: "plot", step: 5, name: "reward", file: "", bytes, width: 4, height: 3 });
    const [, distributions, plot] = events().map((event) => {
      const summary = event.find(([field]) => field === 5);
      return summary && parseMessage(summary[1] as Buffer).map(([, value]) => parseMessage(value as Buffer));
    });
    const doubles = (packed: Buffer) =>
      Array.from({ length: packed.length / 8 }, (_, at) => packed.readDoubleLE(at * 8));
    expect(distributions).toHaveLength(1);
    const [[tag, histogram]] = distributions as [Field[]];
    expect([String(tag![1]), histogram![0]]).toEqual(["distribution/response_length", 5]);
    const fields = new Map(parseMessage(histogram![1] as Buffer));
    expect([1, 2, 3, 4, 5].map((field) => fields.get(field))).toEqual([2, 66, 3, 70, 4364]);
    expect(doubles(fields.get(6) as Buffer)).toEqual(Array.from({ length: 64 }, (_, index) => 3 + index));
    expect(doubles(fields.get(7) as Buffer)).toEqual([2, ...new Array(62).fill(0), 1]);
    const [[name, image]] = plot as [Field[]];
    expect([String(name![1]), image![0]]).toEqual(["plots/reward", 4]);
    expect(parseMessage(image![1] as Buffer)).toEqual([
      [1, 3],
      [2, 4],
      [3, 4],
      [4, bytes],
    ]);
  });

  it("after a resume, marks the step from which earlier files are invalid", () => {
    open().event({ type: "run-start", folder: "", totalSteps: 9, step: 200, history: [], text: [] });
    const [, start] = events();
    expect(start?.slice(1)).toEqual([
      [2, 201],
      [7, Buffer.from([8, 1])],
    ]);
  });
});
