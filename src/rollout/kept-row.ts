/** A task's row as its episodes keep it, so that a reader sees what was expected. */

const maxCharacters = 1 << 16;

/** @returns the row as plain JSON; a sentence in its place where it cannot be written as JSON or is over 64 KiB */
export function keptRow(row: unknown): unknown {
  try {
    const json = JSON.stringify(row, (_key, value: unknown) =>
      typeof value === "bigint" || (typeof value === "number" && !Number.isFinite(value)) ? String(value) : value,
    ) as string | undefined;
    if (json === undefined) return `[not kept: ${typeof row}]`;
    if (json.length > maxCharacters) return `[not kept: ${json.length} characters] ${json.slice(0, 200)}`;
    return JSON.parse(json);
  } catch (error) {
    return `[not kept: ${error instanceof Error ? error.message.split("\n")[0] : error}]`;
  }
}
