/** What all queries share: values as the API sends them, checked parameters, images by their hash. */
import { UserError } from "../../../base/errors.ts";
import { readInside } from "../../../base/files.ts";
import { checkImage, type ImageType, imageFile, imageLimits, mediaFolder } from "../../../images/images.ts";

// Values as the API sends them.

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

// Query parameters of the API. Each query checks what it reads.

/** Parameters as they arrive: any may be missing or wrong. */
export type Given<Query> = { [Name in keyof Query]?: string };

/** @throws UserError for anything else */
export function wholeNumberOf(name: string, text: string | undefined, otherwise: number, max = 1e15): number {
  if (text === undefined || text === "") return otherwise;
  if (!/^\d+$/.test(text)) throw new UserError(`${name}=${text} is not a whole number`);
  return Math.min(Number(text), max);
}

/** @throws UserError if it is missing */
export function required(name: string, text: string | undefined): string {
  if (text === undefined || text === "") throw new UserError(`the parameter ${name} is missing`);
  return text;
}

/** @throws UserError for a word that is not one of these */
export function oneOf<Word extends string>(name: string, text: string, words: readonly Word[]): Word {
  const found = words.find((word) => word === text);
  if (found === undefined) throw new UserError(`${name}=${text} is not one of ${words.join(", ")}`);
  return found;
}

export type Kind = "train" | "validation";
export const kindOf = (text: string | undefined): Kind => oneOf("kind", text ?? "train", ["train", "validation"]);

// An image of a run's messages, by its hash.

export interface MediaFile {
  bytes: Uint8Array;
  type: ImageType;
}

/**
 * @param folder of the run
 * @throws UserError if the run does not have the image, or its file is not an image within the limits
 */
export function mediaFile(folder: string, hash: string): MediaFile {
  if (!/^[0-9a-f]{64}$/.test(hash)) throw new UserError(`${hash.slice(0, 80)} is not the hash of an image`);
  const read = (type: ImageType) =>
    readInside(folder, `${mediaFolder}/${imageFile({ hash, type })}`, imageLimits.bytes);
  const bytes = read("image/png") ?? read("image/jpeg");
  if (bytes === undefined) throw new UserError(`the run has no image ${hash}`, { code: "not_found" });
  return { bytes, type: checkImage(bytes).type };
}
