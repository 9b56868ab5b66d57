/** Values as the API sends them. */

/** JSON has no NaN and no infinities. */
export type JsonNumber = number | "NaN" | "Infinity" | "-Infinity";

/** Fields that an answer may lack: JSON leaves out what is undefined. */
export const optional = <Fields extends object>(fields: Fields): Partial<Fields> => fields;

/** A number of the index. */
export const fromStored = (value: number | string | null | undefined): JsonNumber | null =>
  (value ?? null) as JsonNumber | null;

/** NaN and infinities become text. */
export const toJsonNumber = (value: number): JsonNumber =>
  Number.isFinite(value) ? value : (String(value) as JsonNumber);

export const jsonNumbers = (values: Readonly<Record<string, number>>): Record<string, JsonNumber> =>
  Object.fromEntries(Object.entries(values).map(([name, value]) => [name, toJsonNumber(value)]));
