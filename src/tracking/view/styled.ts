/** Text with a style, cut into rows of a terminal. */
import { dotted } from "../../printable.ts";

/** Codes of ANSI's select graphic rendition, e.g. `"1"` bold, `"38;5;208"` a colour; empty: as it is. */
export interface Span {
  text: string;
  style: string;
}

export type Row = readonly Span[];

export const span = (text: string, style = ""): Span => ({ text, style });

/** As a terminal shows it, or without colors. A control character in the text is shown as a dot. */
export function rowText(row: Row, colors: boolean): string {
  const styled = (text: string, style: string) => (colors && style !== "" ? `\x1b[${style}m${text}\x1b[0m` : text);
  return row.map(({ text, style }) => styled(dotted(text), style)).join("");
}

/** Rows of at most `width` columns: broken at line ends, and where a row is full. Control characters are made visible. */
export function wrap(spans: Row, width: number): Row[] {
  const rows: Span[][] = [[]];
  let used = 0;
  for (const { text, style } of spans) {
    for (const character of text) {
      if (character === "\n") {
        rows.push([]);
        used = 0;
        continue;
      }
      const shown = character === "\t" ? "  " : dotted(character);
      const columns = columnsOf(shown);
      if (used + columns > width && used > 0) {
        rows.push([]);
        used = 0;
      }
      const row = rows.at(-1)!;
      const last = row.at(-1);
      if (last?.style === style) row[row.length - 1] = { text: last.text + shown, style };
      else row.push({ text: shown, style });
      used += columns;
    }
  }
  return rows;
}

/** Letters of East Asian scripts and most pictures take two columns. */
function columnsOf(text: string): number {
  const code = text.codePointAt(0)!;
  const wide =
    (code >= 0x1100 && code <= 0x115f) ||
    (code >= 0x2e80 && code <= 0xa4cf) ||
    (code >= 0xac00 && code <= 0xd7a3) ||
    (code >= 0xf900 && code <= 0xfaff) ||
    (code >= 0xfe30 && code <= 0xfe6f) ||
    (code >= 0xff00 && code <= 0xff60) ||
    code >= 0x1f300;
  return code < 0x2e80 && text.length > 1 ? text.length : wide ? 2 : 1;
}
