/** A line at the bottom of a terminal, redrawn in place. All other output, including `console.log`, scrolls above it. */

import { textWidth } from "../../text-width.ts";

/** The part of `process.stdout` that is used here. */
export interface Terminal {
  /** 0 if a terminal does not know it. */
  columns?: number;
  write(text: string | Uint8Array, ...rest: unknown[]): boolean;
}

export interface LiveLine {
  /** Replaces the text of the line, which must fit into the columns. */
  draw(text: string): void;
  /** Removes the line and restores the streams. */
  end(): void;
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: colors are control characters
const controls = /\x1b\[[0-9;]*m/g;

/** @param terminals first the one with the line, then others on the same screen (standard error) */
export function liveLine(terminals: readonly [Terminal, ...Terminal[]]): LiveLine {
  const [screen] = terminals;
  const writeScreen = screen.write;
  const put = (text: string) => void writeScreen.call(screen, text);
  let shown = 0;
  /** Other output has left the cursor in the middle of a line. */
  let isMidLine = false;

  function erase(): void {
    if (shown === 0) return;
    // A terminal that has become narrower has wrapped the line.
    const rows = Math.ceil(shown / (screen.columns || 80)) - 1;
    put(`${rows > 0 ? `\x1b[${rows}A` : ""}\r\x1b[J`);
    shown = 0;
  }

  const restore = terminals.map((terminal) => {
    const { write } = terminal;
    terminal.write = (text, ...rest) => {
      erase();
      const end = typeof text === "string" ? text.at(-1) : text.at(-1) === 10 ? "\n" : "x";
      if (end !== undefined) isMidLine = end !== "\n" && end !== "\r";
      return write.call(terminal, text, ...rest);
    };
    return () => {
      terminal.write = write;
    };
  });

  return {
    draw(text) {
      if (isMidLine) return; // The line would split what another writer prints piece by piece.
      erase();
      put(text);
      shown = textWidth(text.replace(controls, ""));
    },
    end() {
      erase();
      for (const undo of restore) undo();
    },
  };
}
