/** Query parameters of the API. Each query checks what it reads. */
import { UserError } from "../../errors.ts";

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
