/** Runs one command line: from its words to its exit code. */
import { type Command, CommanderError } from "commander";
import { program } from "./commands.ts";
import { reportError } from "./report-error.ts";

/** Makes every command throw instead of exiting, so that a mistyped one exits with 2. */
function throwInsteadOfExiting(command: Command): Command {
  for (const child of command.exitOverride().commands) throwInsteadOfExiting(child);
  return command;
}

/** Hydra's short flags of two letters, which the parser does not support. */
const longFlags = new Map([
  ["-cp", "--config-path"],
  ["-cn", "--config-name"],
  ["-cd", "--config-dir"],
]);

/**
 * @param words what follows `hone`
 * @returns 0; 2 for a user's mistake and 1 for a failure, both reported on standard error; 130 after Ctrl-C
 */
export async function runCommandLine(words: readonly string[]): Promise<number> {
  try {
    const known = words.map((word) => longFlags.get(word) ?? word);
    await throwInsteadOfExiting(await program(known)).parseAsync(known, { from: "user" });
    return Number(process.exitCode ?? 0);
  } catch (error) {
    // The parser has printed its message. Help and version are not mistakes.
    if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : 2;
    return reportError(error);
  }
}
