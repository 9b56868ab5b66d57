/** The file system's errors about a data file, for people. */
import { UserError } from "../errors.ts";

const messages: Readonly<Record<string, string>> = {
  ENOENT: "there is no such file",
  EISDIR: "is a folder; name a file in it",
  EACCES: "may not be read by this user",
};

export function fileFailure(error: unknown, label: string): UserError {
  if (error instanceof UserError) return error;
  const { code, message } = error as NodeJS.ErrnoException;
  return new UserError(`${label}: ${messages[code ?? ""] ?? `cannot be read: ${message}`}`, {
    hint: "Paths of datasets are relative to where the command runs.",
    cause: error,
  });
}
