/**
 * Colours for what a command writes: on a terminal, or where `FORCE_COLOR` asks for them. Standard output and standard error
 * are asked apart, so that a piped or redirected one stays plain while the other is on the screen, on build servers too.
 */
import pc from "picocolors";

export function wantsColors(stream: { isTTY?: boolean }): boolean {
  const { NO_COLOR, FORCE_COLOR, TERM } = process.env;
  if (NO_COLOR) return false;
  return FORCE_COLOR ? FORCE_COLOR !== "0" : stream.isTTY === true && TERM !== "dumb";
}

export const outColors = pc.createColors(wantsColors(process.stdout));
export const errColors = pc.createColors(wantsColors(process.stderr));
