/** Parses a sequence of JSON values, for formats without an end mark. */

/**
 * @param separator optional between two values
 * @returns the values up to the first text that is not JSON, that text, and the problem with it
 */
export function readJsonValues(
  whole: string,
  separator: string,
): { values: { value: unknown; text: string }[]; rest: string; problem?: string } {
  const values: { value: unknown; text: string }[] = [];
  let rest = whole.trim();
  while (rest !== "") {
    const end = endOfValue(rest);
    const text = rest.slice(0, end);
    try {
      values.push({ value: JSON.parse(text), text });
    } catch (error) {
      return { values, rest, problem: `it is not JSON: ${error instanceof Error ? error.message : error}` };
    }
    rest = rest.slice(end).trimStart();
    if (rest.startsWith(separator)) rest = rest.slice(separator.length).trimStart();
  }
  return { values, rest };
}

/** The text of a key's value in an object's text. Uses the first occurrence of the key. */
export function writtenValue(object: string, key: string): string | undefined {
  const found = new RegExp(`"${key}"\\s*:\\s*`).exec(object);
  if (found === null) return undefined;
  const rest = object.slice(found.index + found[0].length);
  return rest.slice(0, endOfValue(rest));
}

/** The end of the object or list at the start of the text; the text's end if it is not closed. */
export function endOfValue(text: string): number {
  let depth = 0;
  let quoted = false;
  for (let index = 0; index < text.length; index++) {
    const character = text.charAt(index);
    if (quoted) {
      if (character === "\\") index++;
      else if (character === '"') quoted = false;
    } else if (character === '"') quoted = true;
    else if (character === "{" || character === "[") depth++;
    else if ((character === "}" || character === "]") && --depth <= 0) return index + 1;
  }
  return text.length;
}
