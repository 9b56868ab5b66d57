/** The value of a key by its dotted path; undefined where a section on the way is missing. */
export function valueAt(tree: object, key: string): unknown {
  return key
    .split(".")
    .reduce<unknown>(
      (section, name) =>
        typeof section === "object" && section !== null ? (section as Record<string, unknown>)[name] : undefined,
      tree,
    );
}
