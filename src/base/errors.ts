/** Errors that are written for people: what happened, where, and what to do. */
import { fileURLToPath } from "node:url";
import { maskUrls } from "./text.ts";

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

// Explains errors of the operating system, from Node and from the worker: the path, what happened, what to do.

export interface SystemFailure {
  /** The system's name of the error, such as ENOSPC. */
  code: string;
  path?: string | undefined;
}

interface Meaning {
  /** A clause that follows the path. */
  what: string;
  hint: string;
  /** Whether it can happen in a valid run; otherwise it is the user's mistake. */
  run?: true;
}

const permissions = "check its owner and permissions, or name a folder that this user can write to";
const resume = "then continue a run with --resume";

const meanings: ReadonlyMap<string, Meaning> = new Map<string, Meaning>([
  ["EACCES", { what: "permission denied", hint: permissions }],
  ["EPERM", { what: "the operation is not permitted", hint: permissions }],
  ["ENOENT", { what: "the file or folder does not exist", hint: "check the path" }],
  ["ENOTDIR", { what: "a part of this path is a file, not a folder", hint: "remove that file or name another path" }],
  ["EISDIR", { what: "this is a folder, not a file", hint: "remove that folder or name another path" }],
  ["ENOTEMPTY", { what: "the folder is not empty", hint: "remove it or name another one" }],
  ["EEXIST", { what: "it already exists", hint: "remove it or name another path" }],
  ["ENAMETOOLONG", { what: "the name is too long for the file system", hint: "use a shorter name" }],
  ["ELOOP", { what: "its symbolic links form a cycle", hint: "fix the links or name another path" }],
  ["ENOSPC", { what: "the disk is full", hint: `free some space, ${resume}`, run: true }],
  ["EDQUOT", { what: "the disk quota is used up", hint: `free some space, ${resume}`, run: true }],
  [
    "EROFS",
    {
      what: "the file system is read-only",
      hint: `name a folder that can be written, or remount it, ${resume}`,
      run: true,
    },
  ],
  [
    "EFBIG",
    {
      what: "the file is larger than allowed",
      hint: `raise the limit on file sizes (ulimit -f), ${resume}`,
      run: true,
    },
  ],
  ["EIO", { what: "the disk failed to read or write", hint: `check the disk, ${resume}`, run: true }],
  [
    "EMFILE",
    {
      what: "this process has too many open files",
      hint: `raise the limit (ulimit -n) or lower rllm.workflow.n_parallel_tasks, ${resume}`,
      run: true,
    },
  ],
  ["ENFILE", { what: "the system has too many open files", hint: `close other programs, ${resume}`, run: true }],
]);

/** @returns the failure as a sentence with its remedy; undefined for a code that has no general remedy */
export function describeSystemFailure({ code, path }: SystemFailure, cause?: unknown): HoneError | undefined {
  const meaning = meanings.get(code);
  if (meaning === undefined) return undefined;
  const Failed = meaning.run ? RunError : UserError;
  return new Failed(`${shorten(path ?? "a file")}: ${meaning.what} (${code})`, { hint: meaning.hint, cause });
}

const shorten = (path: string) => (path.length <= 300 ? path : `${path.slice(0, 140)}...${path.slice(-140)}`);

/** Adds a path to an error that does not have one. */
export function withPath(error: unknown, path: string): unknown {
  const failure = error as NodeJS.ErrnoException;
  if (error instanceof Error && failure.syscall !== undefined) failure.path ??= path;
  return error;
}

/** Converts an error of the file system to one with a readable message; returns other errors unchanged. */
export function readable(error: unknown): unknown {
  if (!(error instanceof Error) || error instanceof HoneError) return error;
  const { code, syscall, path, dest } = error as NodeJS.ErrnoException & { dest?: string };
  if (code === "ERR_INVALID_ARG_VALUE" && error.message.includes("null bytes")) {
    return new UserError("a path contains a null character", { hint: "remove it from the path", cause: error });
  }
  if (code === undefined || syscall === undefined) return error;
  return describeSystemFailure({ code, path: dest ?? path }, error) ?? error;
}

// Finds the lines of a stack trace that belong to the user's code.

/** The folder of Hone's own code: `src/` or `dist/`. */
const own = fileURLToPath(new URL("..", import.meta.url));

const framesOf = (stack: string) => stack.split("\n").filter((line) => /^\s+at /.test(line));

const isNodesOrPackages = (frame: string) => /node:|node_modules/.test(frame);

/** At most eight frames in the user's files; if there are none, the frames of Hone. */
export function userFrames(stack = ""): string {
  const frames = framesOf(stack).filter((frame) => /[\\/]/.test(frame) && !isNodesOrPackages(frame));
  const users = frames.filter((frame) => !frame.includes(own));
  return (users.length > 0 ? users : frames).slice(0, 8).join("\n");
}

/** Whether Hone's own code threw, even if the user's code called it. */
export function isThrownByHone(stack = ""): boolean {
  const first = framesOf(stack).find((frame) => frame.includes(own) || !isNodesOrPackages(frame));
  return first?.includes(own) === true;
}
