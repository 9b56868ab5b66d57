/** Converts file system errors about a data file to user errors. */
import { HoneError, UserError } from "../errors.ts";

const messages: Readonly<Record<string, string>> = {
  ENOENT: "file not found",
  EISDIR: "is a folder; give the path of a file in it",
  EACCES: "permission denied",
};

export function fileFailure(error: unknown, label: string): HoneError {
  if (error instanceof HoneError) return error;
  const { code, message } = error as NodeJS.ErrnoException;
  return new UserError(`${label}: ${messages[code ?? ""] ?? `cannot be read: ${message}`}`, {
    hint: "Dataset paths are relative to the working directory.",
    cause: error,
  });
}
