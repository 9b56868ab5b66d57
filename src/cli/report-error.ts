/** Errors as a person reads them: the message, what to do, and a stack only for what nobody expected. */
import { errColors } from "../colors.ts";
import { UserError } from "../errors.ts";
import { isThrownByHone, userFrames } from "../stack-frames.ts";
import { readable } from "../system-errors.ts";

/** Prints an error to standard error. Returns the exit code: 2 for the user's mistakes, 1 for failures. */
export function reportError(thrown: unknown): number {
  const say = (text: string) => process.stderr.write(`${text}\n`);
  const error = readable(thrown);
  if (error instanceof UserError) {
    say(`${errColors.red("error:")} ${error.message}`);
    if (error.hint) say(`${errColors.cyan(" help:")} ${error.hint}`);
    return error.exitCode;
  }
  if (!(error instanceof Error)) {
    say(`${errColors.red("error:")} a value that is not an Error was thrown: ${String(error)}`);
    say(`${errColors.cyan(" help:")} throw an Error instead: its stack says where`);
    return 1;
  }
  const frames = userFrames(error.stack);
  if (frames !== "" && !isThrownByHone(error.stack)) {
    say(`${errColors.red("error:")} ${error.name}: ${error.message}\n${frames}`);
    say(`${errColors.cyan(" help:")} the first line of the stack shows where this was thrown`);
    return 1;
  }
  say(`${errColors.red("error:")} ${error.stack ?? error.message}`);
  say(`${errColors.cyan(" help:")} this is a fault of Hone itself; please report it with the lines above`);
  return 1;
}
