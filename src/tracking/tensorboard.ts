/** The subscriber that writes TensorBoard's event files: TFRecord frames around tensorflow.Event messages. */
import { hostname } from "node:os";
import { join } from "node:path";
import protobuf from "protobufjs";
import { appendBytes, makeFolder } from "../base/files.ts";
import { type Subscriber, samplesMarkdown } from "./events.ts";
import { type Histogram, histograms } from "./plots.ts";

/** The fields of event.proto, summary.proto and tensor.proto that Hone writes. */
const definitions = `
syntax = "proto3";
message Event {
  double wall_time = 1;
  int64 step = 2;
  oneof what { string file_version = 3; Summary summary = 5; SessionLog session_log = 7; }
}
message SessionLog { int32 status = 1; }
message Summary { repeated Value value = 1; }
message Value {
  string tag = 1;
  oneof value { float simple_value = 2; Image image = 4; Histogram histo = 5; Tensor tensor = 8; }
  Metadata metadata = 9;
}
message Image { int32 height = 1; int32 width = 2; int32 colorspace = 3; bytes encoded_image_string = 4; }
message Histogram {
  double min = 1;
  double max = 2;
  double num = 3;
  double sum = 4;
  double sum_squares = 5;
  repeated double bucket_limit = 6;
  repeated double bucket = 7;
}
message Metadata { PluginData plugin_data = 1; }
message PluginData { string plugin_name = 1; }
message Tensor { int32 dtype = 1; Shape tensor_shape = 2; repeated bytes string_val = 8; }
message Shape { repeated Dimension dim = 2; }
message Dimension { int64 size = 1; }`;

const eventType = protobuf.parse(definitions, { keepCase: true }).root.lookupType("Event");
const sessionStart = 1;
const stringType = 7;
const rgba = 4;

/**
 * Writes the metrics of each step and validation as scalars, samples as text, distributions as histograms and plots as
 * images, into an event file of its own in `directory`; show them with `tensorboard --logdir runs`. After a resume TensorBoard drops the later steps of earlier
 * files.
 *
 * @param now milliseconds since 1970
 */
export function tensorboardSubscriber(directory: string, now: () => number = Date.now): Subscriber {
  let file: string | undefined;
  const append = (step: number, what: object) => {
    if (file === undefined) {
      makeFolder(directory);
      const seconds = Math.floor(now() / 1000);
      file = join(directory, `events.out.tfevents.${String(seconds).padStart(10, "0")}.${hostname()}.${process.pid}.0`);
      append(0, { file_version: "brain.Event:2" });
    }
    appendBytes(file, record(eventType.encode({ wall_time: now() / 1000, step, ...what }).finish()));
  };
  return {
    event(event) {
      if (event.type === "run-start" && event.step > 0) {
        append(event.step + 1, { session_log: { status: sessionStart } });
      } else if (event.type === "step-end" || event.type === "validation-end") {
        const value = Object.entries(event.metrics).map(([tag, simple_value]) => ({ tag, simple_value }));
        append(event.step, { summary: { value } });
      } else if (event.type === "samples") {
        append(event.step, { summary: { value: [text(`samples/${event.kind}`, samplesMarkdown(event.rows))] } });
      } else if (event.type === "distributions") {
        const found = histograms(event.values);
        const value = found.map(([name, bins]) => ({ tag: `distribution/${name}`, histo: toHistogram(bins) }));
        append(event.step, { summary: { value } });
      } else if (event.type === "plot") {
        const { name, bytes, width, height } = event;
        const image = { height, width, colorspace: rgba, encoded_image_string: bytes };
        append(event.step, { summary: { value: [{ tag: `plots/${name}`, image }] } });
      }
    },
    async close() {},
  };
}

const text = (tag: string, markdown: string) => ({
  tag,
  tensor: { dtype: stringType, tensor_shape: { dim: [{ size: 1 }] }, string_val: [Buffer.from(markdown)] },
  metadata: { plugin_data: { plugin_name: "text" } },
});

const toHistogram = ({ min, max, count, sum, sumSquares, edges, counts }: Histogram) => ({
  min,
  max,
  num: count,
  sum,
  sum_squares: sumSquares,
  // Each bucket begins where the one before it ends.
  bucket_limit: edges.slice(1),
  bucket: counts,
});

/** A TFRecord frame, little-endian: the length, its checksum, the data, its checksum. */
function record(data: Uint8Array): Uint8Array {
  const framed = Buffer.alloc(12 + data.length + 4);
  framed.writeBigUInt64LE(BigInt(data.length), 0);
  framed.writeUInt32LE(masked(framed.subarray(0, 8)), 8);
  framed.set(data, 12);
  framed.writeUInt32LE(masked(data), 12 + data.length);
  return framed;
}

/** The format's masking: a checksum of data that itself contains checksums stays meaningful. */
function masked(bytes: Uint8Array): number {
  const crc = crc32c(bytes);
  return (((crc >>> 15) | (crc << 17)) + 0xa282ead8) >>> 0;
}

// CRC-32C (Castagnoli). Node's `crc32` uses another polynomial.
const table = Uint32Array.from({ length: 256 }, (_, byte) => {
  let value = byte;
  for (let bit = 0; bit < 8; bit++) value = value & 1 ? (value >>> 1) ^ 0x82f63b78 : value >>> 1;
  return value;
});

/** `crc32c("123456789")` is 0xe3069283. */
export function crc32c(bytes: Uint8Array): number {
  let crc = 0xffffffff;
  for (const byte of bytes) crc = table[(crc ^ byte) & 0xff]! ^ (crc >>> 8);
  return (crc ^ 0xffffffff) >>> 0;
}
