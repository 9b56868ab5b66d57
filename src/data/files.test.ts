import { appendFileSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { z } from "zod";
import { UserError } from "../base/errors.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import type { Dataset } from "./dataset.ts";
import { columns, fromRows, generated } from "./dataset.ts";
import { concatenate, fileDataset, openJsonl } from "./files.ts";
import { openDataset } from "./open-dataset.ts";

const folder = temporaryFolder("data");

let files = 0;
function file(text: string | Uint8Array, ending = "jsonl"): string {
  const path = join(folder, `${files++}.${ending}`);
  writeFileSync(path, text);
  return path;
}
const fixture = (name: string) => join(import.meta.dirname, "fixtures", name);
const tasksOf = <Row>({ size, task }: Dataset<Row>) => Array.from({ length: size }, (_, index) => task(index));
const rowsOf = <Row>(dataset: Dataset<Row>) => tasksOf(dataset).map(({ row }) => row);

/** Message and hint of the UserError, without the test's folder. */
async function complaint(run: () => unknown): Promise<string> {
  try {
    await run();
  } catch (error) {
    expect(error).toBeInstanceOf(UserError);
    const { message, hint } = error as UserError;
    return `${message} | ${hint}`.replaceAll(/\S*\/(\d+\.\w+)/g, "f");
  }
  throw new Error("no error was thrown");
}

describe("fromRows", () => {
  test("names rows by number or by their own ids", () => {
    const rows = [{ n: 1 }, { n: 2 }];
    expect(tasksOf(fromRows("sums", rows))).toEqual([
      { id: "sums/0", row: { n: 1 }, origin: "sums[0]" },
      { id: "sums/1", row: { n: 2 }, origin: "sums[1]" },
    ]);
    expect(tasksOf(fromRows("sums", rows, { id: ({ n }) => `n${n}` })).map(({ id }) => id)).toEqual(["n1", "n2"]);
  });

  test("requires rows and unique ids", async () => {
    expect(await complaint(() => fromRows("none", []))).toContain("the dataset none has no rows");
    const same = () => fromRows("sums", [1, 2, 1], { id: (row) => `x${row}` });
    expect(await complaint(same)).toContain('sums: rows 0 and 2 have the same id "x1"');
  });
});

describe("generated", () => {
  const make = (_index: number, random: () => number) => [random(), random()];

  test("a row depends on name, seed and index alone, not on earlier calls", () => {
    const dataset = generated("draws", 1e9, make);
    const late = dataset.task(999_999_999);
    expect(tasksOf({ ...dataset, size: 3 }).map(({ id }) => id)).toEqual(["draws/0", "draws/1", "draws/2"]);
    expect(generated("draws", 1e9, make).task(999_999_999)).toEqual(late);
    expect(generated("other", 1e9, make).task(0).row).not.toEqual(dataset.task(0).row);
    expect(generated("draws", 1e9, make, { seed: 1 }).task(0).row).not.toEqual(dataset.task(0).row);
    expect(dataset.task(0).row).not.toEqual(dataset.task(1).row);
  });

  test("reports the row whose function throws, and refuses an invalid size", async () => {
    const broken = generated("broken", 3, () => {
      throw new Error("no dice");
    });
    expect(await complaint(() => broken.task(2))).toContain("broken[2]: generating the row failed: no dice");
    for (const size of [0, -1, 1.5, Number.NaN])
      expect(await complaint(() => generated("x", size, make))).toContain("has the size");
  });
});

describe("JSON Lines", () => {
  test("keeps line numbers over empty lines, which are counted", async () => {
    const path = file('\ufeff{"q":"a"}\r\n\r\n  \n{"q":"ünï\\n✓"}\n{"q":"c","id":7}');
    const dataset = await openDataset(path);
    expect(rowsOf(dataset)).toEqual([{ q: "a" }, { q: "ünï\n✓" }, { q: "c", id: 7 }]);
    expect(tasksOf(dataset).map(({ origin }) => origin)).toEqual([`${path}:1`, `${path}:4`, `${path}:5`]);
    expect(dataset.notes).toEqual([
      `${path}: skipped 2 empty lines`,
      expect.stringContaining('the column "id" is missing or not unique'),
    ]);
    expect(dataset.task(0).id).toBe(`${dataset.name}/0`);
  });

  test("the column id gives the task ids if it is unique in all rows", async () => {
    const ids = async (text: string) =>
      tasksOf(await openDataset(file(text))).map(({ id }) => id.replace(/^\d+\//, "#"));
    expect(await ids('{"id":"x"}\n{"id":2}\n')).toEqual(["x", "2"]);
    expect(await ids('{"id":"x"}\n{"id":"x"}\n')).toEqual(["#0", "#1"]);
    expect(await ids('{"id":""}\n{"id":"x"}\n')).toEqual(["#0", "#1"]);
    expect(await ids('{"id":null}\n{"id":"x"}\n')).toEqual(["#0", "#1"]);
  });

  test("reads rows of any length in any order", () => {
    const row = fc.record({
      text: fc.oneof(
        fc.string({ unit: "grapheme" }),
        fc.nat(90_000).map((length) => "é".repeat(length)),
      ),
    });
    fc.assert(
      fc.property(
        fc.array(row, { minLength: 1, maxLength: 30 }),
        fc.array(fc.nat(29)),
        fc.boolean(),
        (rows, order, end) => {
          const source = openJsonl(file(rows.map((each) => JSON.stringify(each)).join("\n") + (end ? "\n" : "")));
          expect(source.size).toBe(rows.length);
          for (const index of order) expect(source.row(index % rows.length)).toEqual(rows[index % rows.length]);
        },
      ),
      { numRuns: 50 },
    );
  });

  test.each([
    ['{"a":1}\n{"a":}\n', "f:2: invalid JSON: Unexpected token '}'"],
    ['{"a":1}\n{"a":}\n', '; the line starts with {"a":} | A dataset is JSON Lines'],
    [`{"a": "${"x".repeat(100)}\n`, `the line starts with {"a": "${"x".repeat(53)}... |`],
    [
      '[\n{"a":1}]\n',
      "f:1: invalid JSON: Unexpected end of JSON input; the file seems to be a single JSON array; the line starts with [ |",
    ],
    ['[{"a":1}]\n', 'f:1: a row must be a JSON object, but the line starts with [{"a":1}]'],
    ['{"a":1}\n3\n', "f:2: a row must be a JSON object, but the line starts with 3"],
    ["null\n", "f:1: a row must be a JSON object, but the line starts with null"],
    ["", "has no rows"],
    ["\n\n", "has no rows"],
    [new Uint8Array([0x7b, 0x7d, 0x0a, 0xff, 0xfe]), "f:2: the line is not UTF-8 text"],
  ])("%j is an error with its line", async (text, expected) => {
    expect(await complaint(() => openDataset(file(text)))).toContain(expected);
  });

  test("a file that changes during a run is an error", async () => {
    const path = file('{"a":1}\n{"a":2}\n');
    const dataset = await openDataset(path);
    appendFileSync(path, '{"a":3}\n');
    expect(await complaint(() => dataset.task(1))).toContain("f has changed since it was opened");
  });

  test("a hundred thousand rows open quickly", async () => {
    const path = file(
      Array.from({ length: 100_000 }, (_, index) => `{"question":"what is ${index}?","answer":"${index}"}`).join("\n"),
    );
    const started = performance.now();
    const dataset = columns(await openDataset(path), { question: z.string(), answer: z.string() });
    expect(dataset.task(99_999).row.answer).toBe("99999");
    expect(performance.now() - started).toBeLessThan(5000);
  });
});

describe("Parquet", () => {
  test("plain values for every type", async () => {
    const dataset = await openDataset(fixture("types-snappy.parquet"));
    const day = new Date("2024-01-02T00:00:00Z");
    expect(rowsOf(dataset)).toEqual(
      [
        {
          id: "a",
          question: "1+1",
          answer: 2,
          share: 0.5,
          solved: true,
          tags: ["x", "y"],
          meta: { level: 1, source: "s" },
          day,
        },
        {
          id: "b",
          question: "2+2",
          answer: 4,
          share: null,
          solved: false,
          tags: [],
          meta: { level: 2, source: null },
          day,
        },
        {
          id: "c",
          question: "ünï ✓",
          answer: "1152921504606846976",
          share: 1.5,
          solved: null,
          tags: null,
          meta: null,
          day,
        },
      ].map((row) => expect.objectContaining(row)),
    );
    expect(tasksOf(dataset).map(({ id }) => id)).toEqual(["a", "b", "c"]);
    expect(dataset.task(2).origin).toMatch(/types-snappy\.parquet row 3$/);
  });

  test("bytes, such as those of images", async () => {
    const dataset = await openDataset(fixture("images.parquet"));
    const [red, blue] = [Uint8Array.of(0x89, 0x50, 0xff), Uint8Array.of(0xff, 0xd8, 0xff)];
    expect(rowsOf(dataset)).toEqual([
      { image: { bytes: red, path: "red.png" }, images: [{ bytes: blue, path: null }], file: red },
      { image: { bytes: null, path: "blue.png" }, images: [], file: null },
      { image: null, images: null, file: blue },
    ]);
  });

  test("several row groups", async () => {
    const dataset = await openDataset(fixture("groups-zstd.parquet"));
    expect(rowsOf(dataset)).toEqual(
      Array.from({ length: 10 }, (_, index) => ({ question: `q${index}`, answer: `${index}` })),
    );
    expect(dataset.task(9).id).toBe("groups-zstd/9");
  });

  test.each(["", "PAR1", "not parquet at all", "PAR1".repeat(9)])("%j is refused", async (text) => {
    expect(await complaint(() => openDataset(file(text, "parquet")))).toContain("f: not a readable Parquet file: ");
  });
});

describe("openDataset", () => {
  test.each([
    ["nowhere/train.jsonl", "nowhere/train.jsonl: file not found"],
    ["nowhere/train.parquet", "nowhere/train.parquet: file not found"],
    ["train.csv", "Convert the file to .jsonl"],
    ["openai/gsm8k", 'For a hub dataset, write "hub:openai/gsm8k".'],
    ["train", "not a dataset; use a .jsonl or .parquet file, or hub:organization/name"],
    ["hub:openai/gsm8k?spilt=train", 'unknown parameter "spilt" | Use config, split or revision'],
    ["hub:", '"" is not a hub dataset'],
    ["hub:../../etc", '"../../etc" is not a hub dataset'],
  ])("%s", async (spec, expected) => {
    expect(await complaint(() => openDataset(spec))).toContain(expected);
  });

  test("a folder is refused", async () => {
    for (const ending of ["jsonl", "parquet"]) {
      const path = join(folder, `folder.${ending}`);
      mkdirSync(path);
      expect(await complaint(() => openDataset(path))).toContain("is a folder; give the path of a file in it");
    }
  });
});

test("concatenated sources keep their origins", () => {
  const sources = ['{"n":0}\n{"n":1}\n', '{"n":2}', '{"n":3}\n\n{"n":4}'].map((text, index) =>
    openJsonl(file(text), `part${index}`),
  );
  const dataset = fileDataset("all", concatenate(sources));
  expect(rowsOf(dataset)).toEqual([0, 1, 2, 3, 4].map((n) => ({ n })));
  expect(tasksOf(dataset).map(({ origin }) => origin)).toEqual(["part0:1", "part0:2", "part1:1", "part2:1", "part2:3"]);
  expect(dataset.notes).toEqual(["part2: skipped 1 empty line"]);
});

describe("columns", () => {
  const dataset = fromRows<unknown>("sums", [
    { question: "1+1", answer: "2", extra: true },
    { question: "2+2", answer: "4" },
  ]);

  test("types rows and drops all other columns", () => {
    const typed: Dataset<{ question: string; answer: number }> = columns(dataset, {
      question: z.string(),
      answer: z.coerce.number(),
    });
    expect(rowsOf(typed)).toEqual([
      { question: "1+1", answer: 2 },
      { question: "2+2", answer: 4 },
    ]);
    expect(typed.task(1)).toMatchObject({ id: "sums/1", origin: "sums[1]" });
    expect(rowsOf(columns(dataset, { extra: z.boolean().optional() }))).toEqual([{ extra: true }, {}]);
  });

  test.each<[unknown, z.ZodRawShape, string]>([
    [
      { question: "q", anser: "a" },
      { answer: z.string() },
      'f:1: the row has no column "answer"; its columns are "question", "anser" | Did you mean "anser"?',
    ],
    [
      { x: 1 },
      { question: z.string(), answer: z.string() },
      'f:1: the row has no column "question", "answer"; its columns are "x" | Use the column names',
    ],
    [{}, { question: z.string() }, 'no column "question"; its columns are none |'],
    [
      { answer: 42 },
      { answer: z.string() },
      'f:1: column "answer" is 42: invalid input: expected string, received number | Fix the row',
    ],
    [{ answer: null }, { answer: z.string() }, 'column "answer" is null: '],
    [{ meta: { level: "x" } }, { meta: z.object({ level: z.number() }) }, 'column "meta.level" is "x": '],
    [{ answer: "x".repeat(99) }, { answer: z.string().max(9) }, `column "answer" is "${"x".repeat(59)}...: too big`],
  ])("%j is refused with its origin", async (row, shape, expected) => {
    const opened = await openDataset(file(JSON.stringify(row)));
    expect(await complaint(() => columns(opened, shape))).toContain(expected);
  });

  test("the first bad row is reported on opening, not when it is drawn", async () => {
    const opened = await openDataset(file('{"a":"x"}\n\n{"a":"y"}\n{"b":"z"}\n'));
    expect(await complaint(() => columns(opened, { a: z.string() }))).toContain(
      'f:4: the row has no column "a"; its columns are "b"',
    );
    expect(await complaint(() => columns(fromRows<unknown>("list", [3]), { a: z.string() }))).toContain(
      "list[0]: the row is not an object",
    );
    expect(await complaint(() => columns(fromRows("list", [{ a: new Uint8Array(9) }]), { a: z.string() }))).toContain(
      'list[0]: column "a" is 9 bytes: ',
    );
  });
});
