/** Numbers of the index and of run folders, as the API sends them. */
import type { JsonNumber } from "../api.ts";

export const fromStored = (value: number | string | null | undefined): JsonNumber | null =>
  (value ?? null) as JsonNumber | null;

/** NaN and infinities become text. */
export const toJsonNumber = (value: number): JsonNumber =>
  Number.isFinite(value) ? value : (String(value) as JsonNumber);

export const jsonNumbers = (values: Readonly<Record<string, number>>): Record<string, JsonNumber> =>
  Object.fromEntries(Object.entries(values).map(([name, value]) => [name, toJsonNumber(value)]));
