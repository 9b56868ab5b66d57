// biome-ignore-all lint/suspicious/noTemplateCurlyInString: the configuration's references are spelled like that
/** Random overrides and files give a configuration or a UserError with a location. */
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import fc from "fast-check";
import { expect, test } from "vitest";
import { UserError } from "../../base/errors.ts";
import { nightly } from "../../nightly.fixture.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { plain } from "../tree.ts";
import { composeHydra } from "./compose.ts";
import { expandSweep } from "./expand-sweep.ts";
import { resolveTree } from "./resolve.ts";

const numRuns = nightly ? 10_000 : 300;
const limit = Math.max(60_000, numRuns * 20);
const folder = temporaryFolder("fuzz");

const sound = {
  "config.yaml": "defaults:\n  - db: mysql\n  - _self_\na: 1\nb: {c: '${a}', list: [1, '${b.c}']}\nname: x-${b.c}\n",
  "db/mysql.yaml": "# @package _global_\ndb: {port: 3306, url: 'tcp://${db.host}', host: local}\n",
  "db/pg.yaml": "port: 5432\nhost: ${oc.env:NOT_SET,here}\n",
};

function write(files: Record<string, string>): void {
  mkdirSync(join(folder, "db"), { recursive: true });
  for (const [name, text] of Object.entries(files)) writeFileSync(join(folder, name), text);
}

/** Whether the error's first line names a file and a line, the override, or the key. */
function answers(overrides: readonly string[], act: () => unknown): void {
  try {
    act();
  } catch (error) {
    if (!(error instanceof UserError)) throw error;
    expect(error.message).not.toMatch(/\n\s+at |undefined|\[object/);
    const where = [
      /\.yaml/,
      /^a value must be given|values must be given/,
      /^\d+ mistakes/,
      /search path|pkg:/,
      /multirun/,
    ];
    const isLocated = where.some((pattern) => pattern.test(error.message)) || overrides.length > 0;
    expect(isLocated, error.message).toBe(true);
  }
}

function composeAll(overrides: readonly string[]): void {
  answers(overrides, () => {
    const { tree, resolvers } = composeHydra({ searchPath: [folder], configName: "config", overrides });
    plain(resolveTree(tree, resolvers).tree);
  });
  answers(overrides, () => expandSweep(overrides, { groupOptions: () => ["mysql", "pg"] }));
}

const marks = [
  "=",
  "+",
  "++",
  "~",
  ",",
  "[",
  "]",
  "{",
  "}",
  "(",
  ")",
  "${",
  "}",
  "'",
  '"',
  "\\",
  ":",
  " ",
  ".",
  "@",
  "/",
  "$",
  "\t",
  "\n",
  "é",
  "\0",
  "-",
  "?",
  "%",
];
const words = [
  "a",
  "b.c",
  "b.list.0",
  "db",
  "db.port",
  "name",
  "hydra.searchpath",
  "hydra",
  "1",
  "1e-5",
  "1e999",
  "null",
  "true",
  "nan",
  "choice(",
  "range(1,",
  "sort(",
  "int(",
  "glob(*",
  "interval(0,1)",
  "${a}",
  "${.c}",
  "${oc.env:",
  "${oc.select:",
  "oc.decode:",
  "${name}",
  "???",
  "mysql",
  "__proto__",
  "constructor",
  "00",
  "9007199254740993",
  "pkg://",
  "file:///",
];
const text = fc
  .array(fc.oneof(fc.constantFrom(...marks), fc.constantFrom(...words), fc.string({ maxLength: 4 })), { maxLength: 12 })
  .map((parts) => parts.join(""));
const likely = fc
  .tuple(
    fc.constantFrom("", "+", "++", "~"),
    fc.constantFrom("a", "b", "b.c", "b.list", "b.list.1", "db", "db@x", "name", "new.key", "hydra.mode"),
    text,
  )
  .map(([mark, key, value]) => `${mark}${key}=${value}`);

test("random overrides", { timeout: limit }, () => {
  write(sound);
  const overrides = fc.array(fc.oneof(text, likely), { minLength: 1, maxLength: 3 });
  fc.assert(fc.property(overrides, composeAll), { numRuns, seed: 1 });
});

test("broken YAML files", { timeout: limit }, () => {
  const lines = [
    "defaults:",
    "  - db: mysql",
    "  - db: [mysql, pg]",
    "  - override db: pg",
    "  - _self_",
    "  - /db/pg@x",
    "  - db@_global_: pg",
    "  - config",
    "  - optional db: no",
    "a: 1",
    "a: {b: 1}",
    "b:",
    "  c: ${a}",
    "  c: ${..b}",
    "list: [1, {x: 2}",
    "list:",
    "  - 1",
    "- 2",
    "x: &anchor {y: *anchor}",
    "x: &n [1]",
    "y: *n",
    "<<: *n",
    "<<: {q: 1}",
    "z: !tag 1",
    "m: ???",
    "t: \tq",
    "s: 'open",
    's: "\\x"',
    "k: |",
    "  block",
    "? complex",
    ": v",
    "---",
    "...",
    "# @package _global_",
    "# @package a b c",
    "# @package",
    "hydra: {searchpath: [x]}",
    "hydra: {mode: 3}",
    "o: ${oc.create:{a: ${o}}}",
    "u: ${",
    "u: ${a",
    "u: ${x:}",
    "u: ${${a}}",
    "cycle: ${cycle}",
    "%YAML 1.1",
    "a.b: 1",
    "__proto__: {a: 1}",
    "1: 2",
    "n: 1_0",
    "n: 0x",
    "n: 1:99:3",
    "\u0000",
    "é: ☃",
  ];
  const yaml = fc
    .array(
      fc.oneof(
        { weight: 5, arbitrary: fc.constantFrom(...lines) },
        { weight: 1, arbitrary: fc.string({ maxLength: 12 }) },
      ),
      { maxLength: 9 },
    )
    .map((chosen) => chosen.join("\n"));
  const files = fc.record({ "config.yaml": yaml, "db/mysql.yaml": yaml, "db/pg.yaml": yaml });
  fc.assert(
    fc.property(files, fc.constantFrom([], ["db=pg"], ["+a.b=1"], ["~b"]), (chosen, overrides) => {
      write(chosen);
      composeAll(overrides);
    }),
    { numRuns, seed: 2 },
  );
});
