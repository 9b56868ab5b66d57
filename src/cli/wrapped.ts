import { Help } from "commander";

/** On a terminal, wraps text that begins in this column at spaces; further lines begin in the same column. */
export function wrapped(text: string, column: number): string {
  if (!process.stdout.isTTY) return text;
  return new Help().boxWrap(text, (process.stdout.columns || 80) - column).replaceAll("\n", `\n${" ".repeat(column)}`);
}
