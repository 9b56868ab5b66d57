/** Damages the files of a run folder at random, for the fuzz test. */
import { execFileSync } from "node:child_process";
import {
  appendFileSync,
  chmodSync,
  copyFileSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { randomInteger } from "../../base/values.ts";

type Random = () => number;
type Damage = (file: string, random: Random, run: string) => void;

const pick = <Item>(random: Random, items: readonly Item[]): Item => items[Math.floor(random() * items.length)] as Item;

/** JSON texts that take the place of a value. */
const oddValues = [
  ...[
    "null",
    "true",
    "-1",
    "0.5",
    "1e300",
    "1e999",
    "9007199254740993",
    "1e15",
    '""',
    "[]",
    "{}",
    '"NaN"',
    '"-Infinity"',
  ],
  ...['"x"', '"..%2f..%2fetc"', '"\\u0000\\ud800"', '{"__proto__": 1}', "[null]", '{"length": 1e9}', '"<script>"'],
  `"${"long ".repeat(20_000)}"`,
  `${"[".repeat(5000)}${"]".repeat(5000)}`,
  `"../../${"../../".repeat(20)}etc/passwd"`,
];

/** Earlier damage may have replaced its folder by a file. */
function isRegular(file: string): boolean {
  try {
    return lstatSync(file).isFile();
  } catch {
    return false;
  }
}

/** Changes the lines of a file; of another kind of file, nothing. */
const ofLines =
  (change: (lines: string[], at: number, random: Random) => void): Damage =>
  (file, random) => {
    if (!isRegular(file)) return;
    const lines = readFileSync(file, "utf8").split("\n");
    change(lines, Math.floor(random() * lines.length), random);
    writeFileSync(file, lines.join("\n"));
  };

/** The values within a value, each with its place. Another damage may have nested it deeply, so it does not recurse. */
function* places(value: unknown): Generator<{ within: Record<string, unknown>; key: string }> {
  const waiting = [value];
  while (waiting.length > 0) {
    const within = waiting.pop() as Record<string, unknown> | null;
    if (typeof within !== "object" || within === null) continue;
    for (const key of Object.keys(within)) {
      yield { within, key };
      waiting.push(within[key]);
    }
  }
}

const changeField = ofLines((lines, at, random) => {
  let entry: unknown;
  try {
    entry = JSON.parse(lines[at]!);
    JSON.stringify(entry); // Fails for a line that another damage has nested too deeply.
  } catch {
    return;
  }
  const found = [...places(entry)];
  if (found.length === 0) return;
  // Fields at the top are as likely as all others together, which are mostly tokens.
  const top = found.filter(({ within }) => within === entry);
  const { within, key } = pick(random, random() < 0.5 ? top : found);
  if (random() < 0.3) {
    delete within[key];
    lines[at] = JSON.stringify(entry);
  } else {
    within[key] = "<odd>";
    lines[at] = JSON.stringify(entry).replace('"<odd>"', () => pick(random, oddValues));
  }
});

const changeBytes: Damage = (file, random) => {
  if (!isRegular(file)) return;
  const bytes = readFileSync(file);
  for (let count = randomInteger(random, 1, 20); count > 0 && bytes.length > 0; count--) {
    bytes[Math.floor(random() * bytes.length)] = Math.floor(random() * 256);
  }
  writeFileSync(file, random() < 0.3 ? bytes.subarray(0, Math.floor(random() * bytes.length)) : bytes);
};

const replaceBy =
  (make: (file: string, random: Random, run: string) => void): Damage =>
  (file, random, run) => {
    rmSync(file, { recursive: true, force: true });
    make(file, random, run);
  };

/** A long line before a valid one. The line is a hole in the file, so that it takes no space. */
const addLongLine: Damage = (file, random) => {
  if (!isRegular(file)) return;
  const [first = ""] = readFileSync(file, "utf8").split("\n", 1);
  truncateSync(file, randomInteger(random, 4, 90) * 1_000_000);
  appendFileSync(file, `\n${first}\n`);
};

const damages: Readonly<Record<string, Damage>> = {
  bytes: changeBytes,
  field: changeField,
  fields: (...given) => {
    for (let count = 0; count < 5; count++) changeField(...given);
  },
  "cut line": ofLines((lines, at, random) => lines.splice(at, 1, lines[at]!.slice(0, random() * lines[at]!.length))),
  "doubled line": ofLines((lines, at) => lines.splice(at, 0, lines[at]!)),
  "removed line": ofLines((lines, at) => lines.splice(at, 1)),
  "moved line": ofLines((lines, at, random) => {
    lines.splice(Math.floor(random() * lines.length), 0, ...lines.splice(at, 1));
  }),
  "empty lines": ofLines((lines, at) => lines.splice(at, 0, "", "  ", "\0")),
  "long line": addLongLine,
  "other file": (file, random, run) => {
    const from = random() < 0.5 ? run : join(run, "..", "good");
    const other = join(
      from,
      pick(random, ["events.jsonl", "metrics.jsonl", "config.yaml", "episodes/step-000001.jsonl"]),
    );
    if (isRegular(file) && isRegular(other) && file !== other) copyFileSync(other, file);
  },
  "many keys": replaceBy((file, random) => {
    const keys = Array.from({ length: randomInteger(random, 1, 15) * 1000 }, (_, index) => `key${index}: [{a: 1}]`);
    writeFileSync(file, keys.join("\n"));
  }),
  empty: replaceBy((file) => writeFileSync(file, "")),
  missing: replaceBy(() => {}),
  folder: replaceBy((file) => mkdirSync(join(file, "inside"), { recursive: true })),
  FIFO: replaceBy((file) => execFileSync("mkfifo", [file])),
  link: replaceBy((file, random, run) => {
    const targets = ["/dev/zero", "/dev/stdin", "/proc/self/environ", join(run, "..", "good"), file, "missing", ".."];
    symlinkSync(pick(random, targets), file);
  }),
  unreadable: (file, random) => {
    if (lstatSync(file, { throwIfNoEntry: false })?.isSymbolicLink() === false)
      chmodSync(file, pick(random, [0, 0o200]));
  },
};

/** Files and folders of a run that a damage can hit. */
function filesOf(run: string): string[] {
  const found = readdirSync(run, { recursive: true, withFileTypes: true });
  return [...found.map(({ parentPath, name }) => join(parentPath, name)), join(run, ".lock")].sort();
}

/** @returns a name for each damage */
export function damageRun(run: string, random: Random): string[] {
  return Array.from({ length: randomInteger(random, 1, 4) }, () => {
    const name = pick(random, Object.keys(damages));
    damages[name]!(pick(random, filesOf(run)), random, run);
    return name;
  });
}
