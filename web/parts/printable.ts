/** Text from a model, a tool or a file as a browser can show it, character by character. */

/** Controls except line breaks and tabs, and the marks that reorder or hide the text around them. */
const invisible =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these are what it shows
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** The zero-width joiner of emoji and of several scripts, which is harmless. */
const joiners = "\u200c\u200d";

/** `ESC` becomes ␛, other controls their picture or their code, e.g. ‹U+202E›. */
export function printable(text: string): string {
  return text.replace(invisible, (character) => {
    if (joiners.includes(character)) return character;
    const code = character.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    if (code === 0x7f) return "\u2421";
    return `‹U+${code.toString(16).toUpperCase().padStart(4, "0")}›`;
  });
}

/** On one line. */
export const oneLine = (text: string): string => printable(text.replace(/\s*\n\s*/g, " ⏎ "));
