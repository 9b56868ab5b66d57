/** How a program in each language is run, called, and checked by a test that is code. */
import { readFileSync } from "node:fs";
import type { SandboxProgram } from "../sandbox/types.ts";

type Started = Pick<SandboxProgram, "command" | "files">;

interface Language {
  command: SandboxProgram["command"];
  file: string;
  /** Statements that call a function with the JSON list on standard input and print mark and result as JSON. */
  call(name: string, mark: string): string;
  /** Runs a program and then serves its functions on descriptor 4. */
  serve(code: string): Started;
  /** Runs a test that uses functions served on descriptor 4. */
  check(test: string): Started;
}

/** Exit codes of check_program.py and check-program.mjs. */
export const checkEnds = { passed: 40, failed: 41, broken: 42 };

const own = (name: string) => readFileSync(new URL(`../../../worker/sandbox/${name}`, import.meta.url), "utf8");

const withOwn = (names: readonly [string, ...string[]], file: string, text: string) => ({
  ...Object.fromEntries(names.map((name) => [name, own(name)])),
  [file]: text,
});

export const languages: Record<"python" | "javascript", Language> = {
  python: {
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
    command: ["node", "main.mjs"],
    file: "main.mjs",
    call: (name, mark) =>
      'const { readFileSync: _read } = await import("node:fs");\n' +
      `const _result = await ${name}(...JSON.parse(_read(0, "utf8")));\n` +
      "const _plain = JSON.stringify(_result ?? null, (_key, _value) => {\n" +
      '  if (typeof _value !== "function" && (typeof _value !== "number" || Number.isFinite(_value))) return _value;\n' +
      '  throw new TypeError("the result holds " + String(_value) + ", which JSON does not have");\n' +
      "});\n" +
      `console.log("\\n" + ${JSON.stringify(mark)} + _plain)`,
    serve: (code) => ({
      command: ["node", "main.mjs"],
      files: withOwn(
        ["serve-program.mjs", "plain-data.mjs"],
        "main.mjs",
        `${code}\nawait (await import("./serve-program.mjs")).serve((_name) => eval(_name));\n`,
      ),
    }),
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
