/** The worker cannot decode an image that passed the checks before. */
import { UserError } from "../errors.ts";

export class UnusableImage extends UserError {
  readonly hash: string;
  readonly reason: string;

  constructor(hash: string, reason: string) {
    super(`the image ${hash.slice(0, 12)} cannot be used: ${reason}`);
    this.hash = hash;
    this.reason = reason;
  }
}
