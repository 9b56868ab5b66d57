/** An error response with the text that the client shows its user. */
import { HoneError, UserError } from "../errors.ts";

/**
 * Tinker's clients retry some statuses for minutes, so lasting conditions do not use them: 409 is never sent, and 429
 * only if a retry helps.
 */
const longestMessage = 4000;

/** A message that may repeat what a client sent. */
export const clipped = (message: string): string =>
  message.length > longestMessage ? `${message.slice(0, longestMessage)}...` : message;

export class HttpError extends UserError {
  override name = "HttpError";
  readonly status: 400 | 401 | 403 | 404 | 410 | 413 | 415 | 422 | 429 | 503;

  constructor(status: HttpError["status"], message: string, options: { cause?: unknown } = {}) {
    super(message, options);
    this.status = status;
  }
}

/** The answer to a request that failed. Only the first line of a server's error is for clients. */
export function answerTo(error: unknown): { status: HttpError["status"] | 500; detail: string } {
  if (error instanceof HttpError) return { status: error.status, detail: clipped(error.message) };
  if (error instanceof UserError) {
    return { status: 400, detail: clipped(error.hint ? `${error.message}. ${error.hint}` : error.message) };
  }
  if (!(error instanceof HoneError)) return { status: 500, detail: "the server failed; its log says why" };
  const [detail = ""] = error.message.split("\n", 1);
  return { status: ["engine_down", "engine_died"].includes(error.code) ? 503 : 500, detail: clipped(detail) };
}
