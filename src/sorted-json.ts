import { isObject } from "./is-object.ts";

/** JSON with sorted keys: the same text for equal values, regardless of the order of their keys. */
export const sortedJson = (value: unknown): string =>
  JSON.stringify(value ?? null, (_key, inner: unknown) =>
    isObject(inner)
      ? Object.fromEntries(Object.entries(inner).sort(([left], [right]) => (left < right ? -1 : 1)))
      : inner,
  );
