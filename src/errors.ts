/** Errors that are written for people: what happened, where, and what to do. */

import { maskUrls } from "./mask-urls.ts";

/** Marks the errors of every copy of this package, so that `instanceof` recognizes those of another copy too. */
const brand = Symbol.for("hone.error");

export interface HoneErrorOptions {
  /** Identifies the error for programs, such as "engine_died"; unlike the message, it does not change. */
  code?: string;
  /** What to do next, as a sentence or a command; printed on its own line. */
  hint?: string | undefined;
  /** Lines for a bug report, such as a worker's trace; never sent to clients. */
  details?: string | undefined;
  cause?: unknown;
}

/** Either a `UserError` or a `RunError`. */
export abstract class HoneError extends Error {
  abstract readonly [brand]: "user" | "run";
  abstract readonly exitCode: 1 | 2;
  readonly code: string;
  readonly hint: string | undefined;
  readonly details: string | undefined;

  constructor(message: string, code: string, { hint, details, cause }: HoneErrorOptions = {}) {
    super(maskUrls(message), cause === undefined ? undefined : { cause });
    this.code = code;
    this.hint = hint && maskUrls(hint);
    this.details = details && maskUrls(details);
  }
}

/** A mistake that the user can fix: configuration, data, paths. The command line exits with 2. */
export class UserError extends HoneError {
  override name = "UserError";
  readonly [brand] = "user";
  readonly exitCode = 2;

  constructor(message: string, options: HoneErrorOptions = {}) {
    super(message, options.code ?? "user_error", options);
  }
}

/** A run that failed although its input was valid: a dead worker, a full disk, a loss of NaN. Exits with 1. */
export class RunError extends HoneError {
  override name = "RunError";
  readonly [brand] = "run";
  readonly exitCode = 1;

  constructor(message: string, options: HoneErrorOptions = {}) {
    super(message, options.code ?? "run_failed", options);
  }
}

/** The three classes above are recognized by the brand, other subclasses as usual. */
function isInstance(this: unknown, value: unknown): boolean {
  const kind = typeof value === "object" && value !== null && brand in value ? value[brand] : undefined;
  if (this === HoneError) return kind !== undefined;
  if (this === UserError) return kind === "user";
  if (this === RunError) return kind === "run";
  return Function.prototype[Symbol.hasInstance].call(this, value);
}
Object.defineProperty(HoneError, Symbol.hasInstance, { value: isInstance });

/** The message of what was thrown, which may be any value. */
export const messageOf = (thrown: unknown): string => (thrown instanceof Error ? thrown.message : String(thrown));
