/** JSON values that stand one after the other in a text, for formats that mark no end. */

/**
 * @param separator may stand between two values
 * @returns the values up to the first text that is none, and what is wrong with that
 */
export function readJsonValues(
  whole: string,
  separator: string,
): { values: { value: unknown; text: string }[]; problem?: string } {
  const values: { value: unknown; text: string }[] = [];
  let rest = whole.trim();
  while (rest !== "") {
    const end = endOfValue(rest);
    const text = rest.slice(0, end);
    try {
      values.push({ value: JSON.parse(text), text });
    } catch (error) {
      return { values, problem: `it is not JSON: ${error instanceof Error ? error.message : error}` };
    }
    rest = rest.slice(end).trimStart();
    if (rest.startsWith(separator)) rest = rest.slice(separator.length).trimStart();
  }
  return { values };
}

/** The value of a key as it stands in an object's text; the key's first place, so an earlier object may not hold it too. */
export function writtenValue(object: string, key: string): string | undefined {
  const found = new RegExp(`"${key}"\\s*:\\s*`).exec(object);
  if (found === null) return undefined;
  const rest = object.slice(found.index + found[0].length);
  return rest.slice(0, endOfValue(rest));
}

/** Where the object or list that the text begins with is closed; the text's end where it is not. */
function endOfValue(text: string): number {
  let depth = 0;
  let quoted = false;
  for (let index = 0; index < text.length; index++) {
    const character = text[index]!;
    if (quoted) {
      if (character === "\\") index++;
      else if (character === '"') quoted = false;
    } else if (character === '"') quoted = true;
    else if (character === "{" || character === "[") depth++;
    else if ((character === "}" || character === "]") && --depth <= 0) return index + 1;
  }
  return text.length;
}
