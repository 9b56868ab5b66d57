/** An error response with the text that the client shows its user. */
import { UserError } from "../errors.ts";

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
