/** Errors as a person reads them: the message, what to do, and a stack only for what nobody expected. */
import { errColors } from "../colors.ts";
import { HoneError } from "../errors.ts";
import { printableLines } from "../printable.ts";
import { isThrownByHone, userFrames } from "../stack-frames.ts";
import { readable } from "../system-errors.ts";

/** A message may quote a model or a client. */
const say = (...words: string[]) => process.stderr.write(`${words.join(" ")}\n`);
const sayError = (text: string) => say(errColors.red("error:"), printableLines(text));
const sayHelp = (text: string) => say(errColors.cyan(" help:"), printableLines(text));

/** Prints an error to standard error. Returns the exit code: 2 for the user's mistakes, 1 for failures. */
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
    sayHelp("throw an Error instead: its stack says where");
    return 1;
  }
  const frames = userFrames(error.stack);
  if (frames !== "" && !isThrownByHone(error.stack)) {
    sayError(`${error.name}: ${error.message}\n${frames}`);
    sayHelp("the first line of the stack shows where this was thrown");
    return 1;
  }
  sayError(error.stack ?? error.message);
  sayHelp("this is a fault of Hone itself; please report it with the lines above");
  return 1;
}
