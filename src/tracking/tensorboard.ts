/**
 * The subscriber that writes TensorBoard's event files, and their format: records of TFRecord framing around
 * tensorflow.Event messages (event.proto, summary.proto). Only the fields that scalars need.
 */
import { hostname } from "node:os";
import { join } from "node:path";
import { makeFolder } from "../make-folder.ts";
import { crc32c } from "./crc32c.ts";
import { appendBytes } from "./durable-files.ts";
import type { Metrics, Subscriber } from "./events.ts";
import { samplesMarkdown } from "./samples.ts";

/** Fields of the Event message. */
const wallTimeField = 1;
const stepField = 2;
const fileVersionField = 3;
const summaryField = 5;
const sessionLogField = 7;
const sessionStart = 1;

/**
 * Writes each step's and validation's figures as scalars into an event file of its own in `directory`; look at them
 * with `tensorboard --logdir runs`. After a resume TensorBoard drops what an earlier file has from later steps.
 *
 * @param now milliseconds since 1970
 */
export function tensorboardSubscriber(directory: string, now: () => number = Date.now): Subscriber {
  let file: string | undefined;
  const append = (...events: Uint8Array[]) => {
    if (file === undefined) {
      makeFolder(directory);
      const seconds = Math.floor(now() / 1000);
      file = join(directory, `events.out.tfevents.${String(seconds).padStart(10, "0")}.${hostname()}.${process.pid}.0`);
      appendBytes(file, record(event(now(), 0, text(fileVersionField, "brain.Event:2"))));
    }
    for (const one of events) appendBytes(file, record(one));
  };
  return {
    event(happened) {
      if (happened.type === "run-start" && happened.step > 0) {
        const start = message(sessionLogField, varintField(1, sessionStart));
        append(event(now(), happened.step + 1, start));
      } else if (happened.type === "step-end" || happened.type === "validation-end") {
        append(event(now(), happened.step, message(summaryField, scalars(happened.metrics))));
      } else if (happened.type === "samples") {
        const value = textSummary(`samples/${happened.kind}`, samplesMarkdown(happened.rows));
        append(event(now(), happened.step, message(summaryField, value)));
      }
    },
    async close() {},
  };
}

/** Length, its checksum, the data, its checksum: little-endian, checksums masked so that they may be checksummed again. */
function record(data: Uint8Array): Uint8Array {
  const framed = Buffer.alloc(12 + data.length + 4);
  framed.writeBigUInt64LE(BigInt(data.length), 0);
  framed.writeUInt32LE(masked(framed.subarray(0, 8)), 8);
  framed.set(data, 12);
  framed.writeUInt32LE(masked(data), 12 + data.length);
  return framed;
}

function masked(bytes: Uint8Array): number {
  const crc = crc32c(bytes);
  return (((crc >>> 15) | (crc << 17)) + 0xa282ead8) >>> 0;
}

function event(milliseconds: number, step: number, what: Uint8Array): Uint8Array {
  const time = Buffer.alloc(9);
  time[0] = (wallTimeField << 3) | 1;
  time.writeDoubleLE(milliseconds / 1000, 1);
  return Buffer.concat([time, varintField(stepField, step), what]);
}

/** Summary { repeated Value value = 1 }, Value { string tag = 1; float simple_value = 2 }. */
function scalars(metrics: Metrics): Uint8Array {
  const values = Object.entries(metrics).map(([tag, figure]) => {
    const value = Buffer.alloc(5);
    value[0] = (2 << 3) | 5;
    value.writeFloatLE(figure, 1);
    return message(1, Buffer.concat([text(1, tag), value]));
  });
  return Buffer.concat(values);
}

/** Value { tag = 1; tensor = 8: one string; metadata = 9: the plugin "text" }. */
function textSummary(tag: string, markdown: string): Uint8Array {
  const stringType = 7;
  const shape = message(2, message(2, varintField(1, 1)));
  const tensor = Buffer.concat([varintField(1, stringType), shape, text(8, markdown)]);
  const plugin = message(1, text(1, "text"));
  return message(1, Buffer.concat([text(1, tag), message(8, tensor), message(9, plugin)]));
}

function varint(value: number): Uint8Array {
  const bytes: number[] = [];
  let rest = value;
  while (rest >= 128) {
    bytes.push((rest % 128) + 128);
    rest = Math.floor(rest / 128);
  }
  return Uint8Array.from([...bytes, rest]);
}

const varintField = (field: number, value: number) => Buffer.concat([varint(field << 3), varint(value)]);

const message = (field: number, bytes: Uint8Array) =>
  Buffer.concat([varint((field << 3) | 2), varint(bytes.length), bytes]);

const text = (field: number, value: string) => message(field, Buffer.from(value));
