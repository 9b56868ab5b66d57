/** What a person reads when something is wrong: what happened, where, and what to do about it. */

/** A mistake the user can mend: bad configuration, data, paths. The command line exits with 2. */
export class UserError extends Error {
  override name = "UserError";
  readonly exitCode: number = 2;
  /** The one thing to do next, as a sentence or a command; printed on its own line. */
  readonly hint: string | undefined;

  constructor(message: string, options: { hint?: string; cause?: unknown } = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.hint = options.hint;
  }
}

/** A run that failed although its input was sound: a dead worker, no disk space, NaN losses. Exits with 1. */
export class RunError extends UserError {
  override name = "RunError";
  override readonly exitCode: number = 1;
}
