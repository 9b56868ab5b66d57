/** A number game of several turns: guess a number, and learn whether the secret is higher or lower. */
import { numbersIn } from "../../rewards/text/numbers.ts";
import type { Environment, Reply } from "../types.ts";

/** A number to find by asking. */
export interface GuessNumberRow {
  /** The number to find, from `low` to `high`. */
  secret: number;
  low: number;
  high: number;
}

/**
 * 1 when the number is found, minus a penalty for the guesses: `1 - 0.5 * (used - 1) / (guesses - 1)`.
 * @param guesses default: as many as a binary search needs at most
 */
export function guessNumber({ secret, low, high }: GuessNumberRow, guesses = needed(low, high)): Environment<Reply> {
  if (!(low <= secret && secret <= high)) throw new Error(`the secret ${secret} is not between ${low} and ${high}`);
  let used = 0;
  return {
    reset: () =>
      `I think of a whole number from ${low} to ${high}. You have ${guesses} guesses. Answer with one number.`,
    step({ content }) {
      used++;
      const guess = numbersIn(content, { thousands: false })[0];
      const correct = guess === String(secret);
      const left = guesses - used;
      const answer =
        guess === undefined
          ? "That was not a number"
          : `It is ${secret > Number(guess) ? "higher" : "lower"} than ${guess}`;
      return {
        observation: `${answer}. ${left} guesses left.`,
        reward: correct ? 1 - (guesses > 1 ? (0.5 * (used - 1)) / (guesses - 1) : 0) : 0,
        done: correct || left === 0,
        correct,
        explanation: correct ? `found ${secret} at guess ${used}` : `did not find ${secret}`,
      };
    },
  };
}

const needed = (low: number, high: number) => Math.max(1, Math.ceil(Math.log2(high - low + 2)));
