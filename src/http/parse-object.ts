/** Request bodies: a JSON object that is not nested too deeply. */

/** Recursive code (templates, schemas, `JSON.stringify`) overflows the stack at a few thousand levels. */
const deepest = 200;

/** @throws Error with a sentence for the client */
export function parseObject(text: string): Record<string, unknown> {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    throw new Error(`the body is not valid JSON: ${cause instanceof Error ? cause.message : cause}`, { cause });
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new Error("the body is not a JSON object");
  }
  if (isTooDeep(value)) throw new Error(`the body is nested more than ${deepest} levels deep`);
  return value as Record<string, unknown>;
}

/** Whether JSON is nested too deeply for recursive code. */
export function isTooDeep(value: unknown): boolean {
  let level: object[] = typeof value === "object" && value !== null ? [value] : [];
  for (let depth = 0; level.length > 0; depth++) {
    if (depth >= deepest) return true;
    const next: object[] = [];
    for (const each of level) {
      // Long lists of tokens contain only numbers.
      for (const child of Array.isArray(each) ? each : Object.values(each)) {
        if (typeof child === "object" && child !== null) next.push(child);
      }
    }
    level = next;
  }
  return false;
}
