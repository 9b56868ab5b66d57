/** Reads the log of an inference server. */

/** `(EngineCore pid=17) INFO 11-22 12:00:00 [core.py:90] ` or `[2026-11-22 12:00:00 TP0] ` */
const prefix = /^(\([^)]*\) )?((DEBUG|INFO|WARNING|ERROR) [\d-]+ [\d:]+ \[[^\]]*\] )?(\[[\d-]+ [\d:]+[^\]]*\] )?/;
const mostCharacters = 100;

/** The last message, for a progress line; empty if there is none. */
export function lastMessage(lines: readonly string[]): string {
  const message = lines.at(-1)?.replace(prefix, "").trim() ?? "";
  return message.length > mostCharacters ? `${message.slice(0, mostCharacters)}...` : message;
}

/**
 * Returns the lines that name a cause, or all lines if none does. A failing server prints the traces of several processes,
 * so the first cause is not at the end.
 */
export function causesIn(lines: readonly string[]): readonly string[] {
  const messages = lines.map((line) => line.replace(prefix, ""));
  const causes = messages.filter((line) => /^\s*([\w.]*\.)?\w*(Error|Exception)\b.*: /.test(line));
  return causes.length > 0 ? [...new Set(causes)] : lines;
}
