/** How many columns of a terminal a text takes, and text cut to a number of columns. */

/** Letters of East Asian scripts and pictures take two columns (Unicode's wide and fullwidth ranges, in short). */
const wide =
  /[\u1100-\u115f\u2e80-\u303e\u3041-\ua4cf\ua960-\ua97c\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\u{20000}-\u{3fffd}]|\p{Emoji_Presentation}|\ufe0f$/u;
/** Marks that are drawn on the letter before. */
const empty = /^[\p{Mn}\p{Me}\p{Cf}]+$/u;

const characters = new Intl.Segmenter(undefined, { granularity: "grapheme" });

const columnsOf = (character: string) => (wide.test(character) ? 2 : empty.test(character) ? 0 : 1);

// biome-ignore lint/suspicious/noControlCharactersInRegex: plain ASCII has one column for each character
const ascii = /^[\x00-\x7f]*$/;

export function textWidth(text: string): number {
  if (ascii.test(text)) return text.length;
  return Array.from(characters.segment(text), ({ segment }) => columnsOf(segment)).reduce<number>(
    (sum, one) => sum + one,
    0,
  );
}

/** The text, or its beginning with an ellipsis if it has more columns. */
export function cutText(text: string, width: number): string {
  if (textWidth(text) <= width) return text;
  let cut = "";
  let left = width - 1;
  for (const { segment } of characters.segment(text)) {
    left -= columnsOf(segment);
    if (left < 0) break;
    cut += segment;
  }
  return width < 1 ? "" : `${cut}\u2026`;
}
