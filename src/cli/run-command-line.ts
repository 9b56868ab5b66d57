/** One command line from its words to its exit code. */
import { type Command, CommanderError } from "commander";
import { program } from "./program.ts";
import { reportError } from "./report-error.ts";

/** Every command ends through an exception instead of inside the parser, so that a mistyped one exits with 2. */
function endByException(command: Command): Command {
  for (const child of command.exitOverride().commands) endByException(child);
  return command;
}

/** Hydra's short flags of two letters, which the parser does not know. */
const longFlags = new Map([
  ["-cp", "--config-path"],
  ["-cn", "--config-name"],
  ["-cd", "--config-dir"],
]);

/**
 * @param words what follows `hone`
 * @returns 0; 2 for the user's mistakes, 1 for failures, which are reported on standard error; 130 after Ctrl-C
 */
export async function runCommandLine(words: readonly string[]): Promise<number> {
  try {
    const flagsHelp = words.includes("lightrft") ? (await import("./lightrft.ts")).lightRftFlagsHelp() : "";
    const known = words.map((word) => longFlags.get(word) ?? word);
    await endByException(program(flagsHelp)).parseAsync(known, { from: "user" });
    return Number(process.exitCode ?? 0);
  } catch (error) {
    // The parser has said what is wrong; help and version are no mistakes.
    if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : 2;
    return reportError(error);
  }
}
