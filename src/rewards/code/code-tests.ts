/** Runs a reply's program against tests in a sandbox. */
import { randomUUID } from "node:crypto";
import { type Grade, grade, quote } from "../grade.ts";
import type { Sandbox, SandboxLimits, SandboxProgram, SandboxResult } from "../sandbox/types.ts";
import { codeBlock } from "./code-block.ts";
import { languages } from "./languages.ts";
import { sameJson } from "./same-json.ts";
import { sameOutput } from "./same-output.ts";

/** What a program must do. Expected results stay outside of the sandbox: a program cannot look at them. */
export type CodeTest =
  /** Print this when it reads that. */
  | { stdin: string; stdout: string }
  /** Its function, called with these JSON values, returns that one. */
  | { call: string; arguments: readonly unknown[]; returns: unknown }
  /**
   * These lines, in which the program's functions and objects can be used, throw nothing. They run in another process, to which
   * the program gives plain data alone (docs/decisions/code-tests.md).
   */
  | { code: string };

export interface CodeTestOptions {
  sandbox: Sandbox;
  /** Default "python". */
  language?: "python" | "javascript";
  /** `all`: 1 when every test passes, else 0; `share`: the share of the tests that pass. Default "all". */
  reward?: "all" | "share";
  limits?: Partial<SandboxLimits>;
  signal?: AbortSignal;
}

/**
 * Takes the last fenced block of a reply and tries it. With `reward: "all"` the first failing test is the last one run.
 *
 * @throws RunError when the sandbox cannot be set up (the reward is unknown then, not 0); Error when there are no tests
 * @example
 * const sandbox = await openSandbox();
 * await codeTests(reply.text, [{ stdin: "2 3\n", stdout: "5\n" }], { sandbox });
 */
export async function codeTests(reply: string, tests: readonly CodeTest[], options: CodeTestOptions): Promise<Grade> {
  if (tests.length === 0) throw new Error("codeTests expects at least one test, got none");
  const code = codeBlock(reply)?.code;
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

/** Undefined when it passes, else why not. */
async function tryTest(code: string, test: CodeTest, options: CodeTestOptions): Promise<string | undefined> {
  const { sandbox, limits, signal } = options;
  const language = languages[options.language ?? "python"];
  const shared = { command: language.command, ...(limits ? { limits } : {}), ...(signal ? { signal } : {}) };
  const run = (text: string, stdin: string): Promise<SandboxResult> => {
    const program: SandboxProgram = { ...shared, files: { [language.file]: text }, stdin };
    return sandbox.run(program);
  };
  if ("stdin" in test) {
    const result = await run(code, test.stdin);
    const wrong = unlessEnded(result);
    if (wrong !== undefined) return wrong;
    return sameOutput(result.stdout, test.stdout)
      ? undefined
      : `printed ${quote(result.stdout)}, expected ${quote(test.stdout)}`;
  }
  if ("code" in test) {
    const [check, served] = await sandbox.runConnected(
      { ...shared, ...language.check(test.code) },
      { ...shared, ...language.serve(code) },
    );
    if (check.ended === "exit" && check.exitCode === 0) return undefined;
    return (
      unlessEnded(served.exitCode === null && served.ended === "exit" ? { ...served, exitCode: 0 } : served) ??
      (lastLine(check).endsWith("the program ended") ? "ended before the test did" : unlessEnded(check))
    );
  }
  // The program may print as well; what follows the mark is the answer. It proves nothing: what is expected is not known there.
  const mark = randomUUID();
  const result = await run(`${code}\n${language.call(test.call, mark)}`, JSON.stringify(test.arguments));
  const wrong = unlessEnded(result);
  if (wrong !== undefined) return wrong;
  const returned = result.stdout.split(mark)[1]?.split("\n")[0];
  if (returned === undefined) return `${test.call} did not return`;
  const expected = JSON.stringify(test.returns);
  return sameJson(returned, expected)
    ? undefined
    : `${test.call}(${quote(JSON.stringify(test.arguments).slice(1, -1))}) returned ${quote(returned)}, expected ${quote(expected)}`;
}

function unlessEnded({ ended, exitCode, stderr }: SandboxResult): string | undefined {
  if (ended !== "exit") return `met the limit of ${ended}`;
  if (exitCode === 0) return undefined;
  return `ended with ${exitCode === null ? "a signal" : `exit code ${exitCode}`}: ${quote(lastLine({ stderr }))}`;
}

/** The line that names an error: Node prints others after it. */
const lastLine = ({ stderr }: Pick<SandboxResult, "stderr">) => {
  const lines = stderr.trim().split("\n");
  return lines.findLast((line) => /^[\w.]*(?:Error|Exception)\b/.test(line)) ?? lines.at(-1) ?? "";
};
