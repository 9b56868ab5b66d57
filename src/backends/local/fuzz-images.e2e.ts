/**
 * Random image files, through the checks before a decoder and through the worker's decoder: a picture or a sentence, within the
 * limits of time and memory. `HONE_FUZZ_SECONDS` extends it; the counts are printed.
 */
import { type ChildProcessByStdio, execFileSync, spawn } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { Readable, Writable } from "node:stream";
import { expect, test } from "vitest";
import { UserError } from "../../base/errors.ts";
import { preparePython } from "../../base/python.ts";
import { deriveSeed, uniforms } from "../../base/values.ts";
import { fuzzCases, fuzzTimeout } from "../../fuzz-time.fixture.ts";
import { checkImage } from "../../images/images.ts";
import { mutateImage } from "../../images/mutate-image.fixture.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";

const root = temporaryFolder("fuzz-images");
/** As the worker's `decoder.py`. */
const cpuSeconds = 10;
const maxPixels = 2 ** 25;

type Decoder = ChildProcessByStdio<Writable, Readable, null>;

interface Answer {
  error?: string;
  size?: [number, number];
  bytes: number;
}

/** The answer and the number of its pixels' bytes, or the signal that ended the decoder. */
async function decode({ stdin, stdout, ...child }: Decoder, file: Buffer): Promise<Answer | { ended: string }> {
  const head = Buffer.alloc(24);
  head.writeBigUInt64LE(BigInt(file.length));
  head.writeBigUInt64LE(BigInt(maxPixels), 8);
  head.writeDoubleLE(cpuSeconds, 16);
  stdin.write(Buffer.concat([head, file]));
  let [text, answer, bytes] = ["", undefined as Answer | undefined, 0];
  for await (const piece of stdout.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
    const end = answer === undefined ? piece.indexOf(10) : -1;
    bytes += answer === undefined ? (end < 0 ? 0 : piece.length - end - 1) : piece.length;
    if (answer === undefined) text += piece.toString("utf8", 0, end < 0 ? piece.length : end);
    if (end >= 0) answer = JSON.parse(text) as Answer;
    if (answer !== undefined && bytes >= answer.bytes) return { ...answer, bytes };
  }
  return { ended: String(child.signalCode) };
}

/** The most memory that a process has used, in MB. */
function peakMegabytes(pid: number): number {
  if (process.platform !== "linux") return 0;
  return Number(/VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1] ?? 0) / 1024;
}

test(
  "fuzz: a mutated image is a picture or a sentence, in time and within the memory",
  async () => {
    const { python } = await preparePython();
    const env = { ...process.env, PYTHONPATH: "worker:worker/tests" };
    execFileSync(python, ["worker/tests/make_pictures.py", root], { env });
    const names = readdirSync(root).sort();
    const files = names.map((name) => readFileSync(join(root, name)));
    const open = (): Decoder =>
      spawn(python, ["-W", "ignore", "-m", "hone_worker.images.decoder"], { env, stdio: ["pipe", "pipe", "inherit"] });
    let decoder = open();
    const counts = { cases: 0, refusedBeforeDecoding: 0, refusedByDecoder: 0, pictures: 0, tooSlow: 0, crashed: 0 };
    let [slowest, memory] = [0, 0];
    for (const index of fuzzCases(1500)) {
      const file = mutateImage(uniforms(deriveSeed(7, "image", index)), files);
      counts.cases++;
      const begin = performance.now();
      const before = process.cpuUsage();
      const header = check(file);
      // Processor time: other processes may hold this one up.
      const { user, system } = process.cpuUsage(before);
      expect((user + system) / 1000, `the checks of case ${index}`).toBeLessThan(1000);
      if (header === undefined) {
        counts.refusedBeforeDecoding++;
        continue;
      }
      const answer = await decode(decoder, file);
      slowest = Math.max(slowest, performance.now() - begin);
      if ("ended" in answer) {
        counts[answer.ended === "SIGPROF" ? "tooSlow" : "crashed"]++;
        decoder = open();
        continue;
      }
      if (counts.cases % 100 === 0) memory = Math.max(memory, peakMegabytes(decoder.pid!));
      if (answer.error !== undefined) {
        counts.refusedByDecoder++;
        expect(answer.error, `case ${index}`).toMatch(/^(it|its) [^\n]{5,200}$/);
        expect(answer.error, `case ${index}`).not.toMatch(/Traceback|Error\b|NoneType|object|<class|argument/);
      } else {
        counts.pictures++;
        const [width = 0, height = 0] = answer.size ?? [];
        expect([[header.width, header.height].sort(), answer.bytes], `case ${index}`).toEqual([
          [width, height].sort(),
          width * height * 3,
        ]);
      }
    }
    decoder.kill();
    const told = Object.entries(counts).map(([name, count]) => `${name} ${count}`);
    console.log(`images: ${told.join(", ")}; slowest ${(slowest / 1000).toFixed(2)} s; memory ${memory.toFixed(0)} MB`);
    expect(counts.crashed).toBe(0);
    expect(counts.tooSlow).toBe(0);
    expect(counts.pictures).toBeGreaterThan(0);
    expect(memory).toBeLessThan(2100);
  },
  fuzzTimeout,
);

/** Undefined if the file is refused, with a sentence. */
function check(file: Buffer): { width: number; height: number } | undefined {
  try {
    return checkImage(file);
  } catch (error) {
    expect(error).toBeInstanceOf(UserError);
    expect((error as Error).message).toMatch(/^the image /);
    return undefined;
  }
}
