/** An answer that is not a success, with the text that the client shows its user. */
import { UserError } from "../errors.ts";

/**
 * Statuses that Tinker's clients retry for minutes are never used for lasting conditions: 409 not at all, 429 where
 * trying again helps.
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
