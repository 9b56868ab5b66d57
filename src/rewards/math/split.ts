/** Splits lists, tuples, intervals and unions at commas outside of brackets. */

const opening = new Set(["(", "[", "{"]);
const closing = new Set([")", "]", "}"]);

/** Splits at top-level commas, semicolons, "and" and "or". @example splitTop("1, (2, 3) and 4") // ["1", "(2, 3)", "4"] */
export function splitTop(text: string): string[] {
  const parts: string[] = [];
  let depth = 0;
  let start = 0;
  const cut = (index: number, length: number) => {
    parts.push(text.slice(start, index).trim());
    start = index + length;
  };
  for (let index = 0; index < text.length; index++) {
    const character = text.charAt(index);
    if (opening.has(character)) depth++;
    else if (closing.has(character)) depth--;
    else if (depth === 0 && (character === "," || character === ";")) cut(index, 1);
    else if (depth === 0 && character === " ") {
      const word = /^ (?:and|or) /.exec(text.slice(index, index + 5));
      if (word) cut(index, word[0].length - 1);
    }
  }
  cut(text.length, 0);
  return parts.filter((part) => part !== "");
}

export const splitUnion = (text: string) => text.split(/\\cup(?![a-z])|∪/).map((part) => part.trim());

export interface Bracketed {
  kind: "none" | "tuple" | "set";
  open: string;
  close: string;
  inner: string;
}

/** The content of brackets around the whole text. `(1,2]` is a tuple with two kinds of bracket. */
export function unbracket(text: string): Bracketed {
  const none: Bracketed = { kind: "none", open: "", close: "", inner: text };
  const found = /^(\\\{|\\lbrace|[([{])([\s\S]*?)(\\\}|\\rbrace|[)\]}])$/.exec(text);
  if (!found) return none;
  const [, open, inner, close] = found as unknown as [string, string, string, string];
  let depth = 0;
  for (const character of inner) {
    if (opening.has(character)) depth++;
    else if (closing.has(character) && --depth < 0) return none;
  }
  if (depth !== 0) return none;
  // Braces without a backslash are a set if they contain a list; around one value they only group.
  if (open === "{" && splitTop(inner).length < 2) return none;
  const isSet = open === "\\{" || open === "\\lbrace" || open === "{";
  return { kind: isSet ? "set" : "tuple", open: isSet ? "{" : open, close: isSet ? "}" : close, inner };
}
