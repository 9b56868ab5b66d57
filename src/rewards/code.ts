/** Finds the program in a reply, and tests it in a sandbox. */

import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { UserError } from "../base/errors.ts";
import { memberText, writtenJson } from "../base/json.ts";
import { canonical } from "../base/text.ts";
import { isObject } from "../base/values.ts";
import { type Grade, grade, quote } from "./grade.ts";
import type { Sandbox, SandboxLimits, SandboxProgram, SandboxResult } from "./sandbox/types.ts";

export interface CodeBlock {
  /** The word after the fence in lower case, or empty. */
  language: string;
  code: string;
}

/** A fence, inside of quotes and list items: their marks, the fence, and its info string, which has no backtick after backticks. */
const fence = /^((?:[ \t]*>)*)((?:[ \t]*(?:[-*+]|\d{1,9}[.)])(?=[ \t]))*[ \t]*)(?:(`{3,})([^`]*)|(~{3,})(.*))$/;

/** The closed fenced blocks, as CommonMark reads them. An indented block, as in a list, loses the indentation of its fence. */
export function codeBlocks(reply: string): CodeBlock[] {
  const blocks: CodeBlock[] = [];
  let open: { language: string; lines: string[]; fence: string; quotes: number; indent: number } | undefined;
  let inList = false;
  for (const line of reply.split(/\r?\n/)) {
    if (open === undefined) {
      inList ||= /^[ \t>]*(?:[-*+]|\d{1,9}[.)])[ \t]/.test(line);
      const [, quotes = "", before = "", ticks, afterTicks, tildes, afterTildes] = fence.exec(line) ?? [];
      const marks = ticks ?? tildes;
      const indent = widthOf(quotes === "" ? before : before.replace(/^ /, ""));
      // Four blanks are an indented block, which shows a fence, except in a list.
      if (marks === undefined || (indent > 3 && !inList)) continue;
      const language = /[\w+#-]+/.exec(afterTicks ?? afterTildes ?? "")?.[0].toLowerCase() ?? "";
      open = { language, lines: [], fence: marks, quotes: quotes.split(">").length - 1, indent };
      continue;
    }
    const text = withoutQuotes(line, open.quotes);
    const closing = text.trim();
    const closes = closing.length >= open.fence.length && closing === open.fence.charAt(0).repeat(closing.length);
    if (closes && widthOf(/^[ \t]*/.exec(text)?.[0] ?? "") <= open.indent + 3) {
      blocks.push({ language: open.language, code: open.lines.map((each) => `${each}\n`).join("") });
      open = undefined;
    } else open.lines.push(withoutIndent(text, open.indent));
  }
  return blocks;
}

const widthOf = (blanks: string) =>
  [...blanks].reduce((width, each) => width + (each === "\t" ? 4 - (width % 4) : 1), 0);

function withoutQuotes(line: string, count: number): string {
  let rest = line;
  for (let index = 0; index < count && /^[ \t]*>/.test(rest); index++) rest = rest.slice(rest.indexOf(">") + 1);
  return count > 0 ? rest.replace(/^ /, "") : rest;
}

function withoutIndent(line: string, indent: number): string {
  let at = 0;
  for (let width = 0; width < indent && (line[at] === " " || line[at] === "\t"); at++) {
    width += line[at] === "\t" ? 4 - (width % 4) : 1;
  }
  return line.slice(at);
}

/** Blocks with these languages show what a program prints, or how it is started. */
const notPrograms =
  /^(?:te?xt|plain(?:text)?|output|out|stdout|stdin|input|console|terminal|log|sh|bash|shell|zsh|powershell|cmd|diff|md|markdown)$/;

/** The last closed block with a program; without any, the last one. */
export function codeBlock(reply: string): CodeBlock | undefined {
  const blocks = codeBlocks(reply);
  return (
    blocks.findLast(({ language }) => language !== "" && !notPrograms.test(language)) ??
    blocks.findLast(({ language }) => language === "") ??
    blocks.at(-1)
  );
}

/** The block that tests run: in the tested language, with most of what the tests use; the last one of several. */
function programOf(reply: string, tests: readonly CodeTest[], { names, reads, defines }: Language): string | undefined {
  const blocks = codeBlocks(reply);
  const used = new Set(
    tests.flatMap((test) => ("call" in test ? [test.call] : "code" in test ? wordsOf(test.code) : [])),
  );
  const readsInput = tests.some((test) => "stdin" in test && test.stdin.trim() !== "");
  const rank = ({ language, code }: CodeBlock) => {
    const tested = names.test(language) ? 2 : language === "" ? 1 : 0;
    const defined = new Set(Array.from(code.matchAll(defines), ([, ...found]) => found.find(Boolean) ?? ""));
    const count = [...defined].filter((name) => used.has(name)).length + Number(readsInput && reads.test(code));
    return tested === 0 ? -1 - Number(notPrograms.test(language)) : 3 * count + tested;
  };
  return blocks.reduce<CodeBlock | undefined>(
    (best, block) => (best === undefined || rank(block) >= rank(best) ? block : best),
    undefined,
  )?.code;
}

const wordsOf = (code: string): string[] => code.match(/[\p{ID_Start}$_][\p{ID_Continue}$]*/gu) ?? [];

// How a program in each language is run, called, and checked by a test that is code.

type Started = Pick<SandboxProgram, "command" | "files">;

interface Language {
  /** The program's file and how it is started, where that depends on the code. */
  start?(code: string): { command: SandboxProgram["command"]; file: string };
  /** Of fences. */
  names: RegExp;
  /** What a program contains that reads its standard input. */
  reads: RegExp;
  /** A name that a program defines, as one of the groups. */
  defines: RegExp;
  command: SandboxProgram["command"];
  file: string;
  /** Statements that call a function with the JSON list on standard input and print mark and result as JSON. */
  call(name: string, mark: string): string;
  /** Runs a program and then serves its functions on descriptor 4. */
  serve(code: string): Started;
  /** Runs a test that uses functions served on descriptor 4. */
  check(test: string): Started;
}

/** Everything else is CommonJS, as Node reads it: with `require` and `module.exports`, and not in strict mode. */
const isModule = (code: string) =>
  /^[ \t]*(?:import\b(?![ \t]*\()|export\b|import\.meta\b|(?:(?:const|let|var)\b.*=[ \t]*)?await\b|for[ \t]+await\b)/m.test(
    code,
  );

/** The program's value with this name, or what it exports under it. */
const exported = (name: string, isVariable = false) => {
  const value = isVariable ? `eval(${name})` : `eval(${JSON.stringify(name)})`;
  const key = isVariable ? `[${name}]` : `.${name}`;
  return (
    `(() => { try { return ${value}; } catch (_error) { ` +
    `if (typeof module === "undefined" || module.exports${key} === undefined) throw _error; return module.exports${key}; } })()`
  );
};

/** Exit codes of check_program.py and check-program.mjs. */
const checkEnds = { passed: 40, failed: 41, broken: 42 };

const own = (name: string) => readFileSync(new URL(`../../worker/sandbox/${name}`, import.meta.url), "utf8");

const withOwn = (names: readonly [string, ...string[]], file: string, text: string) => ({
  ...Object.fromEntries(names.map((name) => [name, own(name)])),
  [file]: text,
});

const languages: Record<"python" | "javascript", Language> = {
  python: {
    names: /^(?:py(?:thon)?[\d.]*|ipython|sage)$/,
    reads: /\binput\(|\bstdin\b|\bopen\(0|\bfileinput\b/,
    defines: /^(?:async[ \t]+def|def|class)[ \t]+(\w+)|^(\w+)[ \t]*(?::[^=\n]*)?=(?!=)/gm,
    command: ["python", "main.py"],
    file: "main.py",
    call: (name, mark) =>
      "import json as _json, sys as _sys\n" +
      `_result = ${name}(*_json.load(_sys.stdin))\n` +
      `print("\\n" + ${JSON.stringify(mark)} + _json.dumps(_result, allow_nan=False))`,
    serve: (code) => ({
      command: ["python", "serve_program.py"],
      files: withOwn(["serve_program.py", "plain_data.py"], "main.py", code),
    }),
    check: (test) => ({
      command: ["python", "check_program.py"],
      files: withOwn(["check_program.py", "proxies.py", "plain_data.py"], "test.py", test),
    }),
  },
  javascript: {
    start: (code) => {
      const file = isModule(code) ? "main.mjs" : "main.cjs";
      return { command: ["node", file], file };
    },
    names: /^(?:js|mjs|cjs|javascript|node|es\d*|jsx)$/,
    reads: /\bstdin\b|readFileSync\(\s*(?:0|["']\/dev\/stdin)|\breadline\b/,
    defines:
      /^(?:export[ \t]+(?:default[ \t]+)?)?(?:async[ \t]+)?(?:function\*?|class|const|let|var)[ \t]+([\w$]+)|\bexports\.([\w$]+)[ \t]*=/gm,
    command: ["node", "main.mjs"],
    file: "main.mjs",
    call: (name, mark) =>
      "\n;(async () => {\n" +
      'const { readFileSync: _read } = await import("node:fs");\n' +
      `const _called = ${exported(name)};\n` +
      'const _result = await _called(...JSON.parse(_read(0, "utf8")));\n' +
      "const _plain = JSON.stringify(_result ?? null, (_key, _value) => {\n" +
      '  if (typeof _value !== "function" && (typeof _value !== "number" || Number.isFinite(_value))) return _value;\n' +
      '  throw new TypeError("the result holds " + String(_value) + ", which JSON does not have");\n' +
      "});\n" +
      `console.log("\\n" + ${JSON.stringify(mark)} + _plain);\n})();`,
    serve: (code) => {
      const file = isModule(code) ? "main.mjs" : "main.cjs";
      const serving = `import("./serve-program.mjs").then((_m) => _m.serve((_name) => ${exported("_name", true)}));`;
      return {
        command: ["node", file],
        files: withOwn(["serve-program.mjs", "plain-data.mjs"], file, `${code}\n;${serving}\n`),
      };
    },
    check: (test) => ({
      command: [
        "node",
        "--test-reporter=./test-results.mjs",
        "--test-reporter-destination=stdout",
        "check-program.mjs",
      ],
      files: withOwn(["check-program.mjs", "test-results.mjs", "proxies.mjs", "plain-data.mjs"], "test.mjs", test),
    }),
  },
};

// What a program prints or returns is compared with what a test expects.

/** How near a number must be to the expected one. */
export interface Tolerance {
  /** Of the expected number's size. */
  relative?: number;
  /** Applies if it allows more than the relative one. */
  absolute?: number;
}

/** As in the field: six digits, and no absolute tolerance, because 0 is not an answer for 6.6e-34. */
const usualTolerance = { relative: 1e-6, absolute: 0 };

/** What sums of doubles leave where exactly 0 is expected. */
const almostZero = 1e-12;

/** @param right the expected number */
function isNear(left: number, right: number, tolerance: Tolerance | undefined): boolean {
  // Too large for a double: "1e400" would be as near to any number as its own size.
  if (!Number.isFinite(left) || !Number.isFinite(right)) return false;
  if (right === 0 && tolerance === undefined) return Math.abs(left) <= almostZero;
  const { relative, absolute } = { ...usualTolerance, ...(tolerance ?? {}) };
  const limit = Math.max(absolute, relative * Math.max(Math.abs(left), Math.abs(right)));
  // An approximation of a large integer, such as a count, is another number.
  const most = tolerance === undefined && Number.isInteger(right) ? 1e-6 : limit;
  return Math.abs(left - right) <= Math.min(limit, most);
}

/**
 * Whether two JSON texts have the same value. Text that is not JSON, such as NaN, never has.
 * @param right what is expected
 */
export function sameJson(left: string, right: string, tolerance?: Tolerance): boolean {
  try {
    return same(parse(left), parse(right), tolerance);
  } catch {
    return false;
  }
}

/** Integers beyond the precision of a double are kept as text. */
function parse(text: string): unknown {
  const value: unknown = JSON.parse(text);
  if (!/\d{16}/.test(text)) return value;
  return JSON.parse(
    text.replace(token, (all, digits?: string) =>
      digits && unsafe(digits) ? `{${JSON.stringify(key)}:"${digits}"}` : all,
    ),
  );
}

const key = "\u0000integer";
/** A string, or a whole integer. */
const token = /"[^"\\]*(?:\\.[^"\\]*)*"|(?<![\w.+-])(-?\d+)(?![\d.eE])/g;
const unsafe = (digits: string) => !Number.isSafeInteger(Number(digits));

/** Of an integer that was kept as text, or a double: 22! is written as 1.1240007277776077e+21. */
function integerOf(value: unknown): bigint | undefined {
  if (typeof value === "number") return Number.isInteger(value) ? BigInt(value) : undefined;
  const digits = isObject(value) ? value[key] : undefined;
  return typeof digits === "string" ? BigInt(digits) : undefined;
}

function same(left: unknown, right: unknown, tolerance: Tolerance | undefined): boolean {
  if (left === right) return true;
  const [one, other] = [integerOf(left), integerOf(right)];
  if (one !== undefined && other !== undefined && (one === other || tolerance === undefined)) return one === other;
  if (typeof left === "number" && typeof right === "number") return isNear(left, right, tolerance);
  if (typeof left !== "object" || typeof right !== "object" || left === null || right === null) return false;
  if (Array.isArray(left) !== Array.isArray(right)) return false;
  const [keys, others] = [Object.keys(left), Object.keys(right)];
  return (
    keys.length === others.length &&
    keys.every(
      (key) =>
        Object.hasOwn(right, key) && same(left[key as keyof typeof left], right[key as keyof typeof right], tolerance),
    )
  );
}

// Runs a reply's program against tests in a sandbox.

/** A test of a program. Expected results stay outside of the sandbox, so the program cannot read them. */
export type CodeTest =
  /** The program reads `stdin` and must print `stdout`. */
  | { stdin: string; stdout: string }
  /** The program's function, called with these JSON values, must return `returns`. */
  | { call: string; arguments: readonly unknown[]; returns: unknown }
  /**
   * This code, which can use the program's functions and objects, must not throw. It runs in another process, which gets
   * only plain data from the program (docs/decisions/code-tests.md).
   */
  | { code: string };

export interface CodeTestOptions {
  sandbox: Sandbox;
  /** Default "python". */
  language?: "python" | "javascript";
  /** `all`: 1 if every test passes, else 0; `share`: the share of tests that pass. Default "all". */
  reward?: "all" | "share";
  /**
   * How near printed and returned numbers must be. Default: 1e-6 of the expected number, integers exactly; an absolute tolerance of
   * 0 (1e-12 where 0 is expected). What is given also applies to integers.
   */
  tolerance?: Tolerance;
  /** What separates the words that a program prints: `lines` as expected, except blanks at ends of lines; or any `tokens`. Default "lines". */
  whitespace?: "lines" | "tokens";
  limits?: Partial<SandboxLimits>;
  signal?: AbortSignal;
}

/**
 * Tests the program in a fenced block of a reply: the last one that defines what the tests use. With `reward: "all"` it stops at the first failing test.
 *
 * @throws RunError if the sandbox cannot be set up, UserError if a test is at fault, such as one that never uses the program
 *   (the reward is then unknown, not 0); Error if there are no tests
 * @example
 * const sandbox = await openSandbox();
 * await codeTests(reply.text, [{ stdin: "2 3\n", stdout: "5\n" }], { sandbox });
 */
export async function codeTests(reply: string, tests: readonly CodeTest[], options: CodeTestOptions): Promise<Grade> {
  if (tests.length === 0) throw new Error("codeTests expects at least one test, got none");
  const code = programOf(reply, tests, languages[options.language ?? "python"]);
  if (code === undefined) return grade(false, `no fenced block of code in ${quote(reply)}`);
  const { reward: kind = "all" } = options;
  const failed: string[] = [];
  let passed = 0;
  for (const [index, test] of tests.entries()) {
    const why = await tryTest(code, test, options);
    if (why === undefined) passed++;
    else failed.push(`test ${index + 1}: ${why}`);
    if (failed.length > 0 && kind === "all") break;
  }
  const correct = failed.length === 0;
  const ran = passed + failed.length;
  const explanation = `${passed} of ${ran === tests.length ? ran : `the first ${ran} of ${tests.length}`} tests passed`;
  const { level } = options.sandbox.isolation;
  const weak = level === "process" ? " (run without isolation of files and network)" : "";
  const why = [`${explanation}${weak}`, ...failed.slice(0, 3)].join("; ");
  return grade(correct, why, kind === "share" ? passed / tests.length : Number(correct));
}

/** The reason if the test fails. */
async function tryTest(code: string, test: CodeTest, options: CodeTestOptions): Promise<string | undefined> {
  const { sandbox, limits, signal } = options;
  const language = languages[options.language ?? "python"];
  const { command, file } = language.start?.(code) ?? language;
  const shared = { command, limits, signal };
  const run = (text: string, stdin: string): Promise<SandboxResult> => {
    const program: SandboxProgram = { ...shared, files: { [file]: text }, stdin };
    return sandbox.run(program);
  };
  if ("stdin" in test) {
    const result = await run(code, test.stdin);
    const wrong = unlessEnded(result);
    if (wrong !== undefined) return wrong;
    return sameOutput(result.stdout, test.stdout, options)
      ? undefined
      : `printed ${quote(result.stdout)}, expected ${quote(test.stdout)}`;
  }
  if ("code" in test) {
    const [check, served] = await sandbox.runConnected(
      { ...shared, ...language.check(test.code) },
      { ...shared, ...language.serve(code) },
    );
    if (check.ended === "exit" && check.exitCode === checkEnds.passed) return undefined;
    const why = check.stderr.trim().split("\n").at(-1) ?? "";
    if (check.exitCode === checkEnds.broken) throw brokenTest(why, test.code);
    if (check.exitCode === 0) return "the test ended its process before the end";
    // One that reached a limit ends the other, whose exit code says nothing then.
    const over = [served, check].find(({ ended }) => ended !== "exit");
    return (
      unlessEnded(over ?? { ...served, exitCode: served.exitCode ?? 0 }) ??
      (why.endsWith("the program ended") ? "ended before the test did" : undefined) ??
      (check.exitCode === checkEnds.failed ? quote(why) : unlessEnded(check))
    );
  }
  // The program may also print: its answer follows the mark. It may forge the answer, but does not know the expected one.
  const mark = randomUUID();
  // Integers that a double cannot hold stay as the row has them.
  const row = writtenJson(test) ?? "{}";
  const given = memberText(row, "arguments") ?? JSON.stringify(test.arguments);
  const expected = memberText(row, "returns") ?? JSON.stringify(test.returns);
  const result = await run(`${code}\n${language.call(test.call, mark)}`, given);
  const wrong = unlessEnded(result);
  if (wrong !== undefined) return wrong;
  const returned = result.stdout.split(mark)[1]?.split("\n")[0];
  if (returned === undefined) return `${test.call} did not return`;
  return sameJson(returned, expected, options.tolerance)
    ? undefined
    : `${test.call}(${quote(given.trim().slice(1, -1))}) returned ${quote(returned)}, expected ${quote(expected)}`;
}

/** A test that gives no program the reward that it deserves: an unknown reward, since a reply is not at fault. */
const brokenTest = (why: string, code: string) =>
  new UserError(`codeTests cannot grade with the test ${quote(code)}: ${why}`, {
    hint: "fix the test: docs/decisions/code-tests.md lists what it can use",
  });

function unlessEnded({ ended, exitCode, stderr }: SandboxResult): string | undefined {
  if (ended !== "exit") return `exceeded the limit of ${ended}`;
  if (exitCode === 0) return undefined;
  return `ended with ${exitCode === null ? "a signal" : `exit code ${exitCode}`}: ${quote(lastLine({ stderr }))}`;
}

/** The line with the error's name: Node prints other lines after it. */
const lastLine = ({ stderr }: Pick<SandboxResult, "stderr">) => {
  const lines = stderr.trim().split("\n");
  return lines.findLast((line) => /^[\w.]*(?:Error|Exception)\b/.test(line)) ?? lines.at(-1) ?? "";
};

/**
 * Compares a program's output with the expected output as judges do: line by line, without blanks at the ends of lines and of the
 * output, and numbers by value.
 */
export function sameOutput(
  printed: string,
  expected: string,
  { tolerance, whitespace = "lines" }: Pick<CodeTestOptions, "tolerance" | "whitespace"> = {},
): boolean {
  const parts = (text: string) => (whitespace === "tokens" ? [text.trim()] : text.trimEnd().split("\n"));
  const [left, right] = [parts(printed), parts(expected)];
  const gap = whitespace === "tokens" ? /\s+/ : /([ \t\r\f\v]+)/;
  const sameLine = (line: string, other: string) => {
    if (line === other) return true;
    const [words, others] = [line.trimEnd().split(gap), other.trimEnd().split(gap)];
    return (
      words.length === others.length && words.every((word, index) => sameWord(word, others[index] ?? "", tolerance))
    );
  };
  return left.length === right.length && left.every((line, index) => sameLine(line, right[index] ?? ""));
}

const number = /^[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?$/i;
const integer = /^[+-]?\d+$/;

function sameWord(left: string, right: string, tolerance: Tolerance | undefined): boolean {
  if (left === right) return true;
  if (!number.test(left) || !number.test(right)) return false;
  // Different large integers may be equal as floating point.
  const exact = [left, right].map((word) => canonical(word.replace("+", "")));
  if (exact[0] === exact[1]) return true;
  if (exact.every((digits) => integer.test(digits)) && tolerance === undefined) return false;
  if (tolerance === undefined && integer.test(right) && !Number.isSafeInteger(Number(right))) return false;
  // Too small for a double.
  if (Number(right) === 0 && /^[^e]*[1-9]/i.test(right)) return false;
  return isNear(Number(left), Number(right), tolerance);
}
