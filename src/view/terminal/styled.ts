/** Styled text, and breaking it into rows of a terminal. */
import { dotted } from "../../printable.ts";

/** `style` is a code of ANSI's select graphic rendition, e.g. `"1"` bold, `"38;5;208"` a color; "" changes nothing. */
export interface Span {
  text: string;
  style: string;
}

export type Row = readonly Span[];

export const dim = "2";
export const bold = "1";

export const span = (text: string, style = ""): Span => ({ text, style });

/** The text for a terminal, with or without colors. Control characters become dots. */
export function rowText(row: Row, colors: boolean): string {
  const styled = (text: string, style: string) => (colors && style !== "" ? `\x1b[${style}m${text}\x1b[0m` : text);
  return row.map(({ text, style }) => styled(dotted(text), style)).join("");
}

/** Breaks text at line ends and after `width` columns. */
export function wrap(spans: Row, width: number): Row[] {
  let row: Span[] = [];
  const rows = [row];
  let used = 0;
  const breakRow = () => {
    row = [];
    rows.push(row);
    used = 0;
  };
  for (const { text, style } of spans) {
    for (const character of text) {
      if (character === "\n") {
        breakRow();
        continue;
      }
      const shown = character === "\t" ? "  " : dotted(character);
      const columns = shown === character ? columnsOf(character) : shown.length;
      if (used + columns > width && used > 0) breakRow();
      const last = row.at(-1);
      if (last?.style === style) last.text += shown;
      else row.push({ text: shown, style });
      used += columns;
    }
  }
  return rows;
}

/** East Asian letters and most pictures are two columns wide. */
const wide = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\u{1f300}-\u{10ffff}]/u;

const columnsOf = (character: string) => (wide.test(character) ? 2 : 1);
