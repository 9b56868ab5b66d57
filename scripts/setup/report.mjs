/** Messages and errors of set-up. All messages go to standard error; standard output has only the result. */

/** A failure that a person can act on. */
export class SetupError extends Error {
  /**
   * @param {string} message
   * @param {{hint?: string | undefined, exitCode?: 1 | 2, cause?: unknown}} options exit code 2: the user can fix it
   */
  constructor(message, { hint, exitCode = 1, cause } = {}) {
    super(message, { cause });
    this.hint = hint;
    this.exitCode = exitCode;
  }
}

/**
 * Replaces a status line on a terminal, if there is one.
 * @param {string} text
 */
export function say(text) {
  process.stderr.write(`${process.stderr.isTTY ? "\r\x1b[2K" : ""}set-up: ${text}\n`);
}

/** @param {number} since a `performance.now()` */
export function secondsSince(since) {
  const seconds = (performance.now() - since) / 1000;
  return seconds < 60 ? `${seconds.toFixed(1)} s` : `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

/** @param {number} bytes */
export function size(bytes) {
  return bytes >= 1e9 ? `${(bytes / 1e9).toFixed(1)} GB` : `${Math.round(bytes / 1e6)} MB`;
}
