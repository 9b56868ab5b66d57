/** What a person reads while the server runs: one line an event, with the time and whose it is. */
import { outColors } from "../colors.ts";

export interface Log {
  info(who: string, text: string): void;
  /** Something to look at. */
  warn(who: string, text: string): void;
}

/** Ids are long and mostly alike: the first part of the session, then model or sampler. */
export const shortId = (id: string): string => id.replace(/^([0-9a-f]{8})[0-9a-f-]{28}/, "$1");

/** @param write gets whole lines */
export function createLog(write: (line: string) => void, now: () => Date = () => new Date()): Log {
  const line = (who: string, text: string) => {
    const time = now().toISOString().slice(11, 19);
    write(`${outColors.dim(time)} ${who === "" ? "" : `${outColors.cyan(shortId(who))} `}${text}\n`);
  };
  return { info: line, warn: (who, text) => line(who, outColors.yellow(text)) };
}
