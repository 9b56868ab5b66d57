/**
 * A line at the bottom of a terminal that is redrawn in place while everything else scrolls past above it, a user's
 * own `console.log` included. Knows nothing of what the line says.
 */

/** The part of a terminal stream that is used; `process.stdout` and `process.stderr` are such. */
export interface Terminal {
  columns?: number;
  write(text: string | Uint8Array, ...rest: unknown[]): boolean;
}

export interface LiveLine {
  /** Shows this instead of what was there. Must fit into the columns, colours aside. */
  draw(text: string): void;
  /** Removes it and lets the streams go. */
  end(): void;
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: colours are control characters
const controls = /\x1b\[[0-9;]*m/g;

/** @param terminals the one that the line is on, then others that end on the same screen (standard error) */
export function liveLine(terminals: readonly [Terminal, ...Terminal[]]): LiveLine {
  const originals = terminals.map((terminal) => terminal.write);
  const [screen] = terminals;
  const put = (text: string) => void originals[0]!.call(screen, text);
  let shown = 0;
  /** Whether others have left the cursor in the middle of a line. */
  let midLine = false;

  function erase(): void {
    if (shown === 0) return;
    // A terminal made narrower since has broken the line into several.
    const rows = Math.ceil(shown / (screen.columns ?? 80)) - 1;
    put(`${rows > 0 ? `\x1b[${rows}A` : ""}\r\x1b[J`);
    shown = 0;
  }

  terminals.forEach((terminal, index) => {
    terminal.write = (text, ...rest) => {
      erase();
      const end = typeof text === "string" ? text.at(-1) : text.at(-1) === 10 ? "\n" : "x";
      if (end !== undefined) midLine = end !== "\n" && end !== "\r";
      return originals[index]!.call(terminal, text, ...rest);
    };
  });

  return {
    draw(text) {
      if (midLine) return; // Somebody is printing piece by piece: the line would cut it in two.
      erase();
      put(text);
      shown = text.replace(controls, "").length;
    },
    end() {
      erase();
      terminals.forEach((terminal, index) => {
        terminal.write = originals[index]!;
      });
    },
  };
}
