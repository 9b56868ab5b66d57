/** Datasets and the tasks of a step: rows by index, in memory or made on demand, and which of them a step takes. Reads no files. */
import { z } from "zod";
import { UserError } from "../base/errors.ts";
import { beginningOf, nearest } from "../base/text.ts";
import { deriveSeed, permutation, uniforms } from "../base/values.ts";
import type { Config } from "../config/schema.ts";

/** One row of a dataset. */
export interface Task<Row = unknown> {
  /** The row's own `id`, or `"{dataset}/{index}"`: the same across runs and resumes. */
  id: string;
  row: Row;
  /** Where the row came from, for messages: `"train.jsonl:17"`. */
  origin: string;
}

// Datasets: rows by index. Kept minimal, so that a generated dataset can be a function and a file an array.

/** Tasks by their index. */
export interface Dataset<Row> {
  name: string;
  size: number;
  /** @param index 0 <= index < size. The same index always gives the same task. */
  task(index: number): Task<Row>;
  /** Notes from opening the dataset to show to the user: `"train.jsonl: skipped 3 empty lines"`. */
  notes?: readonly string[];
  /** Keeps rows that cannot be read again in the folder of a run; called when a run begins, and when it continues. */
  keep?(folder: string): void;
}

/** A row of a file: columns by name. */
export type FileRow = Record<string, unknown>;

/** The tasks of a dataset, in order. @param size tasks at once; -1: all */
export function* batches<Row>(dataset: Dataset<Row>, size: number): Generator<Task<Row>[]> {
  const atOnce = size === -1 ? dataset.size : size;
  for (let first = 0; first < dataset.size; first += atOnce) {
    const count = Math.min(atOnce, dataset.size - first);
    yield Array.from({ length: count }, (_, index) => dataset.task(first + index));
  }
}

// Creates a dataset from an array.

/**
 * A dataset of rows in memory.
 *
 * @param options.id returns a unique id for a row; default `"{name}/{index}"`
 * @example
 * const sums = fromRows("sums", [{ question: "2+2", answer: 4 }]);
 */
export function fromRows<Row>(
  name: string,
  rows: readonly Row[],
  options: { id?: (row: Row, index: number) => string } = {},
): Dataset<Row> {
  if (rows.length === 0) throw new UserError(`the dataset ${name} has no rows`);
  const tasks: Task<Row>[] = [];
  const first = new Map<string, number>();
  for (const [index, row] of rows.entries()) {
    const id = options.id?.(row, index) ?? `${name}/${index}`;
    const earlier = first.get(id);
    if (earlier !== undefined) {
      throw new UserError(`${name}: rows ${earlier} and ${index} have the same id "${id}"`, {
        hint: "Rollouts are grouped by task id, so each row needs a unique id.",
      });
    }
    first.set(id, index);
    tasks.push({ id, row, origin: `${name}[${index}]` });
  }
  return { name, size: tasks.length, task: (index) => tasks[index] as Task<Row> };
}

// Creates a dataset from a function that generates each row on demand.

/**
 * A dataset whose rows are made when they are asked for.
 *
 * @param make must depend only on its arguments; `random()` returns uniforms in [0, 1), seeded per row
 * @param options.seed seed of the rows (default 0); the rows also depend on the name
 * @example
 * const sums = generated("sums", 1000, (_index, random) => ({ left: randomInteger(random, 0, 99) }));
 */
export function generated<Row>(
  name: string,
  size: number,
  make: (index: number, random: () => number) => Row,
  options: { seed?: number } = {},
): Dataset<Row> {
  if (!Number.isSafeInteger(size) || size < 1) {
    throw new UserError(`the dataset ${name} has the size ${size}, which is not a positive integer`);
  }
  return {
    name,
    size,
    task(index) {
      const origin = `${name}[${index}]`;
      try {
        const row = make(index, uniforms(deriveSeed(options.seed ?? 0, "dataset", name, index)));
        return { id: `${name}/${index}`, row, origin };
      } catch (cause) {
        throw new UserError(`${origin}: generating the row failed: ${cause instanceof Error ? cause.message : cause}`, {
          cause,
        });
      }
    },
  };
}

// Several datasets one after the other.

/** @throws UserError for no dataset */
export function concatenated<Row>(datasets: readonly Dataset<Row>[]): Dataset<Row> {
  const [first, ...others] = datasets;
  if (first === undefined) throw new UserError("a list of datasets is empty");
  if (others.length === 0) return first;
  return {
    name: datasets.map(({ name }) => name).join("+"),
    size: datasets.reduce((total, { size }) => total + size, 0),
    notes: datasets.flatMap(({ notes = [] }) => notes),
    task(index) {
      const { part, within } = partAt(datasets, index);
      return part.task(within);
    },
  };
}

/** The part that has a row, in parts one after the other, and the number of the row within it. */
export function partAt<Part extends { size: number }>(parts: readonly Part[], index: number) {
  let within = index;
  for (const part of parts) {
    if (within < part.size) return { part, within };
    within -= part.size;
  }
  throw new RangeError(`row ${index} is out of range`);
}

// Types the columns that an experiment uses and checks them in every row before the run starts.

/**
 * Reads every row once, so an invalid row 70,000 does not stop a run overnight. Rows keep only the columns of `shape`.
 * @example
 * const tasks = columns(await openDataset("train.jsonl"), { question: z.string(), answer: z.string() });
 * @throws UserError for the first row with a missing column or a value of the wrong type, with the row's origin
 */
export function columns<Shape extends z.ZodRawShape>(
  dataset: Dataset<unknown>,
  shape: Shape,
): Dataset<z.output<z.ZodObject<Shape>>> {
  const schema = z.object(shape);
  const typed = (index: number): Task<z.output<z.ZodObject<Shape>>> => {
    const task = dataset.task(index);
    const parsed = schema.safeParse(task.row);
    if (!parsed.success) throw rowError(task, parsed.error);
    return { ...task, row: parsed.data };
  };
  for (let index = 0; index < dataset.size; index++) typed(index);
  return { ...dataset, task: typed };
}

function rowError(task: Task, error: z.ZodError): UserError {
  const { row, origin } = task;
  if (typeof row !== "object" || row === null) return new UserError(`${origin}: the row is not an object with columns`);
  const present = Object.keys(row);
  const missing = error.issues.map(({ path }) => String(path[0])).filter((column) => !present.includes(column));
  if (missing.length > 0) {
    const near = [...new Set(missing.flatMap((column) => nearest(column, present, 1)))];
    return new UserError(
      `${origin}: the row has no column ${missing.map((column) => `"${column}"`).join(", ")}; ` +
        `its columns are ${present.length === 0 ? "none" : present.map((column) => `"${column}"`).join(", ")}`,
      { hint: near.length > 0 ? `Did you mean ${near.map((column) => `"${column}"`).join(", ")}?` : renameHint },
    );
  }
  const wrong = error.issues.map(({ path, message }) => {
    const value = path.reduce<unknown>(
      (inner, part) => (inner as Record<PropertyKey, unknown> | undefined)?.[part],
      row,
    );
    return `column "${path.join(".")}" is ${shown(value)}: ${message.charAt(0).toLowerCase()}${message.slice(1)}`;
  });
  return new UserError(`${origin}: ${wrong.join("; ")}`, {
    hint: "Fix the row, or widen the column's type in the script, e.g. z.string().nullable().",
  });
}

const renameHint = "Use the column names of the file, and rename them in the workflow.";

function shown(value: unknown): string {
  if (value instanceof Uint8Array) return `${value.length} bytes`;
  const text = JSON.stringify(value) ?? String(value);
  return beginningOf(text, 60);
}

// Selects the tasks of a step: pure functions of the step, so a resumed run needs only its step count.

interface SamplerOptions {
  /** Tasks in the dataset. */
  size: number;
  /** Tasks per step, at most `size` unless `partial` is set. */
  batchSize: number;
  /** The last step of an epoch has the remainder. Otherwise the remainder is dropped. */
  partial?: boolean;
  seed: number;
  /** Whether to use a new order each epoch instead of the dataset's own. */
  shuffle: boolean;
}

/** The order of the last epoch, cached because computing it takes time proportional to the dataset. */
let last: { key: string; order: readonly number[] } | undefined;

function epochOrder(size: number, seed: number, epoch: number): readonly number[] {
  const key = `${size} ${seed} ${epoch}`;
  if (last?.key !== key) last = { key, order: permutation(size, deriveSeed(seed, "shuffle", epoch)) };
  return last.order;
}

/**
 * The tasks of a step. Each task is used at most once per epoch.
 * @param step counts from 0
 * @returns `epoch` counts from 0; `indices` are different numbers below `size`
 * @throws UserError when a batch is larger than the dataset
 */
export function taskIndices(options: SamplerOptions, step: number): { epoch: number; indices: number[] } {
  const { size, batchSize, seed, shuffle, partial = false } = options;
  const perEpoch = partial ? Math.ceil(size / batchSize) : stepsPerEpoch(size, batchSize);
  const epoch = Math.floor(step / perEpoch);
  const first = (step % perEpoch) * batchSize;
  const count = Math.min(batchSize, size - first);
  if (!shuffle) return { epoch, indices: Array.from({ length: count }, (_, index) => first + index) };
  return { epoch, indices: epochOrder(size, seed, epoch).slice(first, first + batchSize) };
}

export type TaskOptions = Omit<SamplerOptions, "size">;

export interface TaskDraw {
  /** Counts from 1. */
  draw: number;
  /** Counts from 0. */
  epoch: number;
  tasks: Task[];
}

/** @param draw counts from 1 */
export function takeTasks(dataset: Dataset<unknown>, options: TaskOptions, draw: number): TaskDraw {
  const { epoch, indices } = taskIndices({ ...options, size: dataset.size }, draw - 1);
  return { draw, epoch, tasks: indices.map((index) => dataset.task(index)) };
}

/** Tasks that a training step trains on. */
export function tasksPerStep({ rllm: { async_training }, data }: Config): number {
  return async_training.enable ? async_training.mini_batch_size : data.train_batch_size;
}

/** Tasks of one draw. */
export function tasksPerDraw(config: Config): number {
  const { enable, multiplier } = config.rllm.rejection_sample;
  return Math.floor(tasksPerStep(config) * (enable ? multiplier : 1));
}

/**
 * The number of full batches in the dataset; a remainder does not count.
 * @param key the configuration key of the batch size
 * @throws UserError when the dataset is smaller than one batch
 */
export function stepsPerEpoch(size: number, batchSize: number, key = "data.train_batch_size"): number {
  if (batchSize > size) {
    throw new UserError(`${key} is ${batchSize}, but the dataset has only ${size} tasks`, {
      hint: `Set ${key}=${size} or less, or add tasks.`,
    });
  }
  return Math.floor(size / batchSize);
}

/** Training steps of a run: `total_batches` if set (> 0), otherwise `total_epochs` epochs of `perEpoch` steps. */
export function totalSteps(config: Config, perEpoch: number): number {
  const { total_batches, total_epochs } = config.rllm.trainer;
  return total_batches !== null && total_batches > 0 ? total_batches : total_epochs * perEpoch;
}
