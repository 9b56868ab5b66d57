/** Prints errors: the message, what to do, and a stack if the error is unexpected. */
import { errColors } from "../colors.ts";
import { HoneError } from "../errors.ts";
import { printableLines } from "../printable.ts";
import { isThrownByHone, userFrames } from "../stack-frames.ts";
import { readable } from "../system-errors.ts";

const say = (...words: string[]) => process.stderr.write(`${words.join(" ")}\n`);
const sayError = (text: string) => say(errColors.red("error:"), printableLines(text));
const sayHelp = (text: string) => say(errColors.cyan(" help:"), printableLines(text));

/** Prints an error to standard error. Returns the exit code: 2 for a user's mistake, 1 for a failure. */
export function reportError(thrown: unknown): number {
  const error = readable(thrown);
  if (error instanceof HoneError) {
    sayError(error.message);
    if (error.details) say(printableLines(error.details));
    if (error.hint) sayHelp(error.hint);
    return error.exitCode;
  }
  if (!(error instanceof Error)) {
    sayError(`a value that is not an Error was thrown: ${String(error)}`);
    sayHelp("throw an Error instead: its stack shows where it happened");
    return 1;
  }
  const frames = userFrames(error.stack);
  if (frames !== "" && !isThrownByHone(error.stack)) {
    sayError(`${error.name}: ${error.message}\n${frames}`);
    sayHelp("the first line of the stack shows where this was thrown");
    return 1;
  }
  sayError(error.stack ?? error.message);
  sayHelp("this is a bug in Hone; please report it with the lines above");
  return 1;
}
