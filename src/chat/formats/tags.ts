/** Reads elements such as `<parameter=city>Paris</parameter>` from a text. */

/** An opening text that ends in a name: `before` + name + `after`. */
export interface NamedTag {
  before: string;
  after: string;
  close: string;
}

/**
 * The elements that the text consists of, in order, with nothing but white space between them.
 *
 * @returns what is wrong if the text has anything else
 */
export function readTags(text: string, tag: NamedTag): [name: string, content: string][] | string {
  const found: [string, string][] = [];
  let at = 0;
  for (;;) {
    const start = text.indexOf(tag.before, at);
    const skipped = text.slice(at, start < 0 ? undefined : start);
    if (skipped.trim() !== "") return `${JSON.stringify(skipped.trim().slice(0, 40))} is outside of ${tag.before}`;
    if (start < 0) return found;
    const nameEnd = text.indexOf(tag.after, start + tag.before.length);
    if (nameEnd < 0) return `${tag.before} is not closed`;
    const from = nameEnd + tag.after.length;
    const end = text.indexOf(tag.close, from);
    if (end < 0) return `${tag.close} is missing`;
    found.push([text.slice(start + tag.before.length, nameEnd).trim(), text.slice(from, end)]);
    at = end + tag.close.length;
  }
}

/** Templates put values on lines of their own. */
export const withoutLineEnds = (text: string) => text.replace(/^\n/, "").replace(/\n$/, "");
