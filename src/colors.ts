/**
 * Colors of a command's output: on a terminal, or if `FORCE_COLOR` is set. Standard output and standard error are checked
 * separately, since one may be redirected.
 */
import pc from "picocolors";

export function wantsColors(stream: { isTTY?: boolean }): boolean {
  const { NO_COLOR, FORCE_COLOR, TERM } = process.env;
  if (NO_COLOR) return false;
  return FORCE_COLOR ? FORCE_COLOR !== "0" : stream.isTTY === true && TERM !== "dumb";
}

export const outColors = pc.createColors(wantsColors(process.stdout));
export const errColors = pc.createColors(wantsColors(process.stderr));
