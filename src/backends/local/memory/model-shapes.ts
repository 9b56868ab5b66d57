/** The shapes of a model's weights, read from its files without loading it. */
import { closeSync, openSync, readdirSync, readFileSync, readSync, statSync } from "node:fs";
import { join } from "node:path";

export interface ModelShapes {
  /** The shape of each weight by its name. */
  weights: ReadonlyMap<string, readonly number[]>;
  layers: number;
  hiddenSize: number;
  /** Width of a layer's feed-forward network. */
  innerSize: number;
  vocabularySize: number;
}

/** @returns undefined if the folder has no safetensors files, or its configuration does not name the sizes */
export function readModelShapes(folder: string): ModelShapes | undefined {
  try {
    const files = readdirSync(folder).filter((name) => name.endsWith(".safetensors"));
    const whole: unknown = JSON.parse(readFileSync(join(folder, "config.json"), "utf8"));
    const { text_config: text, ...own } = whole as Record<string, unknown>;
    const config = { ...own, ...(text as object) } as Record<string, number>;
    const { num_hidden_layers: layers, hidden_size: hiddenSize, vocab_size: vocabularySize } = config;
    if (files.length === 0 || !layers || !hiddenSize || !vocabularySize) return undefined;
    const weights = new Map(files.flatMap((name) => [...shapesIn(join(folder, name))]));
    return { weights, layers, hiddenSize, vocabularySize, innerSize: config.intermediate_size ?? 4 * hiddenSize };
  } catch {
    return undefined;
  }
}

/** A safetensors file begins with the length of its header, 8 bytes, and the header, JSON. */
function shapesIn(file: string): Map<string, number[]> {
  const read = (from: number, length: number): Buffer => {
    const bytes = Buffer.alloc(length);
    readSync(handle, bytes, 0, length, from);
    return bytes;
  };
  const handle = openSync(file, "r");
  try {
    const length = Number(read(0, 8).readBigUInt64LE());
    if (length > statSync(file).size) throw new RangeError(`${file} is damaged`);
    const header = JSON.parse(read(8, length).toString()) as Record<string, { shape: number[] }>;
    return new Map(Object.entries(header).flatMap(([name, { shape }]) => (shape ? [[name, shape]] : [])));
  } finally {
    closeSync(handle);
  }
}
