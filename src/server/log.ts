/** The server's log for people: one line per event, with its time and its session or model. */
import { outColors } from "../colors.ts";
import { printable } from "../printable.ts";

export interface Log {
  info(who: string, text: string): void;
  /** Counts what was sampled, for the next summary. */
  sampled(sequences: number, tokens: number): void;
  /** Logs one line about what was sampled since the last call. */
  summarize(): void;
  /** A problem to look at. Each line of `details` (a stack) becomes a line of the log. */
  warn(who: string, text: string, details?: string): void;
}

/** Shortens an id to the first part of the session's, then the model or sampler. */
const shortId = (id: string): string => id.replace(/^([0-9a-f]{8})[0-9a-f-]{28}/, "$1");

const longestLine = 1000;

/** @param write gets whole lines, without the control characters of what clients sent */
export function createLog(write: (line: string) => void, now: () => Date = () => new Date()): Log {
  const line = (who: string, text: string, color = (shown: string) => shown) => {
    const time = now().toISOString().slice(11, 19);
    const shown = printable(text.length > longestLine ? `${text.slice(0, longestLine)}...` : text);
    write(`${outColors.dim(time)} ${who === "" ? "" : `${outColors.cyan(printable(shortId(who)))} `}${color(shown)}\n`);
  };
  let [sequences, tokens] = [0, 0];
  return {
    info: (who, text) => line(who, text),
    sampled(more, moreTokens) {
      sequences += more;
      tokens += moreTokens;
    },
    summarize() {
      if (sequences > 0) line("", `sampled ${sequences} sequences, ${tokens} tokens`);
      [sequences, tokens] = [0, 0];
    },
    warn(who, text, details) {
      for (const each of [text, ...(details?.split("\n") ?? [])]) line(who, each, outColors.yellow);
    },
  };
}
