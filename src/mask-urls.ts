/** Replaces the user name and password in the URLs of stored and printed text. */
export const maskedLogin = "://***@";

// A login ends at the last @ before the path. No backtracking: each part excludes what follows it.
const login = /:\/\/[^\s/?#"'`<>@]*(?:@[^\s/?#"'`<>@]*)*@/g;

/** `http://user:secret@host` becomes `http://***@host`. */
export const maskUrls = (text: string): string => text.replace(login, maskedLogin);

/** The same in all texts of a JSON value. */
export function maskUrlsIn(value: unknown): unknown {
  if (typeof value === "string") return maskUrls(value);
  if (Array.isArray(value)) return value.map(maskUrlsIn);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, child]) => [name, maskUrlsIn(child)]));
}
