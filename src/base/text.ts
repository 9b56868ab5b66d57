/** Text for people: suggestions for mistyped names, masked logins, visible control characters, numbers. */
import { distance as editDistance } from "fastest-levenshtein";

// Suggests known names for a mistyped one.

/** Case, hyphens and camelCase do not count as differences. */
const plain = (name: string) =>
  name
    .replace(/([a-z0-9])([A-Z])/g, "$1_$2")
    .replace(/-/g, "_")
    .toLowerCase();

/** Longer than any real name. Computing a distance costs the product of both lengths. */
const longestName = 100;

/**
 * Distance of `name` from `candidate`; Infinity unless at most a third of the letters differ or one contains the other.
 */
export function nameDistance(name: string, candidate: string): number {
  if (name.length > longestName) return Number.POSITIVE_INFINITY;
  const [a, b] = [plain(name), plain(candidate)];
  const distance = editDistance(a, b);
  const shorter = Math.min(a.length, b.length);
  if (distance < shorter && distance <= Math.max(1, Math.floor(Math.max(a.length, b.length) / 3))) return distance;
  const contained = shorter >= 3 && (a.includes(b) || b.includes(a));
  return contained ? Math.abs(a.length - b.length) / 2 : Number.POSITIVE_INFINITY;
}

/** The candidates closest to `name`, nearest first. */
export function nearest(name: string, candidates: readonly string[], limit = 3): string[] {
  return candidates
    .map((candidate) => ({ candidate, distance: nameDistance(name, candidate) }))
    .filter(({ distance }) => distance < Number.POSITIVE_INFINITY)
    .sort((left, right) => left.distance - right.distance)
    .slice(0, limit)
    .map(({ candidate }) => candidate);
}

/** The text up to a number of characters, with "..." if more was there. */
export const beginningOf = (text: string, longest: number): string =>
  text.length > longest ? `${text.slice(0, longest)}...` : text;

/** Replaces the user name and password in the URLs of stored and printed text. */
export const maskedLogin = "://***@";

// A login ends at the last @ before the path. No backtracking: each part excludes what follows it.
const login = /:\/\/[^\s/?#"'`<>@]*(?:@[^\s/?#"'`<>@]*)*@/g;

/** `http://user:secret@host` becomes `http://***@host`. */
export const maskUrls = (text: string): string => text.replace(login, maskedLogin);

/** The same in all texts of a JSON value. */
export function maskUrlsIn(value: unknown): unknown {
  if (typeof value === "string") return maskUrls(value);
  if (Array.isArray(value)) return value.map(maskUrlsIn);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, child]) => [name, maskUrlsIn(child)]));
}

// Escapes control characters and marks that reorder text, and masks logins, so that terminals and logs can show any text.

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

/** A hyphen, or a minus sign of its own, is a sign unless it is a dash between two values, as in "12-31". */
const start = String.raw`(?:(?<![\w.)])[-−]|(?<![\w.]))`;

const ungrouped = new RegExp(String.raw`${start}(?:\d+(?:\.\d+)?|\.\d+)`, "g");

const withThousands = new RegExp(String.raw`${start}(?:(?:\d{1,3}(?:,\d{3}(?!\d))+|\d+)(?:\.\d+)?|\.\d+)`, "g");

/**
 * The numbers of a text in order, in canonical form: `"$1,234.50"` gives `"1234.5"`, `"-0"` gives `"0"`.
 * @param thousands whether "1,234" is one number; false for lists such as "10,200,300"
 */
export function numbersIn(text: string, { thousands }: { thousands: boolean }): string[] {
  return [...text.matchAll(thousands ? withThousands : ungrouped)].map(([written]) => canonical(written));
}

/** @example canonical("-007.50") // "-7.5" */
export function canonical(written: string): string {
  const [whole = "", fraction = ""] = written.replace(/[-−,]/g, "").split(".");
  const digits = whole.replace(/^0+(?=\d)/, "") || "0";
  // The pattern /0+$/ would take quadratic time on zeros before another digit.
  let end = fraction.length;
  while (fraction[end - 1] === "0") end--;
  const decimals = fraction.slice(0, end);
  const magnitude = decimals === "" ? digits : `${digits}.${decimals}`;
  return /^[-−]/.test(written) && magnitude !== "0" ? `-${magnitude}` : magnitude;
}
