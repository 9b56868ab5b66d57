/** What a person reads when something is wrong: what happened, where, and what to do about it. */

/** Marks the errors of every copy of this package, so that `instanceof` recognizes those of another copy too. */
const brand = Symbol.for("hone.error");

/** A mistake the user can fix: configuration, data, paths. The command line exits with 2. */
export class UserError extends Error {
  override name = "UserError";
  readonly [brand]: "user" | "run" = "user";
  readonly exitCode: number = 2;
  /** The one thing to do next, as a sentence or a command; printed on its own line. */
  readonly hint: string | undefined;
  /** Lines for a defect report, such as a worker's trace; never sent to clients. */
  readonly details: string | undefined;

  constructor(message: string, options: { hint?: string; details?: string | undefined; cause?: unknown } = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.hint = options.hint;
    this.details = options.details;
  }
}

/** A run that failed although its input was sound: a dead worker, no disk space, NaN losses. Exits with 1. */
export class RunError extends UserError {
  override name = "RunError";
  override readonly [brand]: "user" | "run" = "run";
  override readonly exitCode: number = 1;
}

/** Own subclasses are recognized as always; the two above by their brand. */
function isInstance(this: unknown, value: unknown): boolean {
  const kind = typeof value === "object" && value !== null && brand in value ? value[brand] : undefined;
  if (this === UserError) return kind !== undefined;
  if (this === RunError) return kind === "run";
  return Function.prototype[Symbol.hasInstance].call(this, value);
}
Object.defineProperty(UserError, Symbol.hasInstance, { value: isInstance });
