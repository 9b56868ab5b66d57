/**
 * Asks the set-up script for what the local engine needs outside of npm: a Python with torch, and packages that hold
 * model weights. The script does nothing, in a moment, when all is there; else it says what it does.
 */
import { spawn } from "node:child_process";
import { relative } from "node:path";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import { RunError, UserError } from "../../errors.ts";

export interface SetupResult {
  /** The project's `.hone` folder. */
  home: string;
  /** Of the step `python`: the executable that has torch (`HONE_PYTHON` where that is set). */
  python?: string;
  /** Of the step `package`: the folder that the package was installed into. */
  directory?: string;
}

interface SetupFailure {
  error: string;
  hint?: string;
  exitCode: number;
}

/** The same relative path from src/ and from dist/. */
const script = fileURLToPath(new URL("../../../scripts/setup.mjs", import.meta.url));

/** The same step as a command to type, from the working directory. */
export const setupCommand = (...step: string[]) => ["node", relative(process.cwd(), script), ...step].join(" ");

/**
 * @param step `python`, or `package` and the package's short name
 * @throws UserError when the machine lacks something the user can add; RunError when the set-up fails
 */
export async function runSetup(...step: ["python"] | ["package", string]): Promise<SetupResult> {
  const child = spawn(process.execPath, [script, ...step, "--json"], { stdio: ["ignore", "pipe", "inherit"] });
  // The set-up holds a lock and may run for minutes: it goes when its asker goes.
  const kill = (): void => void child.kill();
  process.on("exit", kill);
  try {
    const output = await text(child.stdout);
    const result = parse(output.trim().split("\n").at(-1) ?? "");
    if (!("error" in result)) return result;
    const Failure = result.exitCode === 2 ? UserError : RunError;
    throw new Failure(result.error, result.hint === undefined ? {} : { hint: result.hint });
  } finally {
    process.off("exit", kill);
  }
}

function parse(line: string): SetupResult | SetupFailure {
  try {
    return JSON.parse(line) as SetupResult | SetupFailure;
  } catch {
    return {
      error: "the set-up of the local engine ended before it was done",
      hint: "Run it again: `hone doctor`.",
      exitCode: 1,
    };
  }
}
