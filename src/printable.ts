/** Text of models and clients, made safe for terminals and logs: control characters and marks that reorder text are escaped. */

/** C0, DEL and C1 controls, line and paragraph separators, and the marks of Unicode's bidirectional algorithm. */
const unsafe = /[\p{Cc}\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/gu;

const short: Readonly<Record<string, string>> = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

const hex = (character: string, width: number) => character.charCodeAt(0).toString(16).padStart(width, "0");

const escapeOne = (character: string) =>
  short[character] ?? (character < "\u0100" ? `\\x${hex(character, 2)}` : `\\u${hex(character, 4)}`);

/** Text that stays on one line. */
export const printable = (text: string): string => text.replace(unsafe, escapeOne);

/** The same with line breaks and tabs left in. */
export const printableLines = (text: string): string =>
  text.replace(unsafe, (character) => (character === "\n" || character === "\t" ? character : escapeOne(character)));

/** JSON text of the same value: `JSON.stringify` leaves some of these characters as they are. */
export const printableJson = (json: string): string => json.replace(unsafe, (character) => `\\u${hex(character, 4)}`);

/** One column wide for each, where a layout must not change. */
export const dotted = (text: string): string => text.replace(unsafe, "\u00b7");
