/** Errors as a person reads them: the message, what to do, and a stack only for what nobody expected. */
import { errColors } from "../colors.ts";
import { UserError } from "../errors.ts";

/** Prints an error to standard error. Returns the exit code: 2 for the user's mistakes, 1 for failures. */
export function reportError(error: unknown): number {
  const say = (text: string) => process.stderr.write(`${text}\n`);
  if (error instanceof UserError) {
    say(`${errColors.red("error:")} ${error.message}`);
    if (error.hint) say(`${errColors.cyan(" help:")} ${error.hint}`);
    return error.exitCode;
  }
  say(`${errColors.red("error:")} ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`);
  say(`${errColors.cyan(" help:")} this is a fault of Hone itself; please report it with the lines above`);
  return 1;
}
