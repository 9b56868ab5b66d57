/** What a person reads while the server runs: one line an event, with the time and whose it is. */
import { outColors } from "../colors.ts";
import { printable } from "../printable.ts";

export interface Log {
  info(who: string, text: string): void;
  /** Something to look at. `details` (a stack) gets a line for each of its own. */
  warn(who: string, text: string, details?: string): void;
}

/** Ids are long and mostly alike: the first part of the session, then model or sampler. */
const shortId = (id: string): string => id.replace(/^([0-9a-f]{8})[0-9a-f-]{28}/, "$1");

const longestLine = 1000;

/** @param write gets whole lines, without the control characters of what clients sent */
export function createLog(write: (line: string) => void, now: () => Date = () => new Date()): Log {
  const line = (who: string, text: string, color = (shown: string) => shown) => {
    const time = now().toISOString().slice(11, 19);
    const shown = printable(text.length > longestLine ? `${text.slice(0, longestLine)}...` : text);
    write(`${outColors.dim(time)} ${who === "" ? "" : `${outColors.cyan(printable(shortId(who)))} `}${color(shown)}\n`);
  };
  return {
    info: (who, text) => line(who, text),
    warn(who, text, details) {
      for (const each of [text, ...(details?.split("\n") ?? [])]) line(who, each, outColors.yellow);
    },
  };
}
