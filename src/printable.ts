/** Escapes control characters and marks that reorder text, and masks logins, so that terminals and logs can show any text. */
import { maskUrls } from "./mask-urls.ts";

/** C0, DEL and C1 controls, line and paragraph separators, and the marks of Unicode's bidirectional algorithm. */
const unsafe = /[\p{Cc}\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/gu;

const short: Readonly<Record<string, string>> = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

const hex = (character: string, width: number) => character.charCodeAt(0).toString(16).padStart(width, "0");

const escapeOne = (character: string) =>
  short[character] ?? (character < "\u0100" ? `\\x${hex(character, 2)}` : `\\u${hex(character, 4)}`);

/** Text that stays on one line. */
export const printable = (text: string): string => maskUrls(text).replace(unsafe, escapeOne);

/** Keeps line breaks and tabs. */
export const printableLines = (text: string): string =>
  maskUrls(text).replace(unsafe, (character) =>
    character === "\n" || character === "\t" ? character : escapeOne(character),
  );

/** Escapes JSON text without changing its value. `JSON.stringify` does not escape some of these characters. */
export const printableJson = (json: string): string => json.replace(unsafe, (character) => `\\u${hex(character, 4)}`);

/** Replaces each character by one column, for fixed layouts. */
export const dotted = (text: string): string => text.replace(unsafe, "\u00b7");
