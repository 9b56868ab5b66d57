/** Shows the progress of a slow start on standard error: one redrawn line on a terminal, else plain lines. */

import { printable } from "../printable.ts";
import { cutText } from "../text-width.ts";

export function showStatus(): { say(text: string): void; end(): void } {
  const live = process.stderr.isTTY === true;
  let shown = false;
  let last = "";
  return {
    say(given) {
      const text = printable(given);
      if (text === last) return;
      last = text;
      shown = true;
      process.stderr.write(
        live ? `\r\x1b[2K${cutText(text, Math.max(20, (process.stderr.columns || 80) - 1))}` : `${text}\n`,
      );
    },
    end() {
      if (live && shown) process.stderr.write("\r\x1b[2K");
      shown = false;
    },
  };
}
