/** Recorded matrices: one padded row per reply, with a 0/1 mask of the tokens that the policy sampled. */

export type Matrix = number[][];

export const sum = (values: readonly number[]) => values.reduce((total, value) => total + value, 0);

export const masked = (matrix: readonly ArrayLike<number>[], mask: Matrix): Matrix =>
  matrix.map((row, index) => Array.from(row, (value, token) => value * mask[index]![token]!));

/** The entries where the mask is 1, row after row. */
export const trained = (matrix: readonly ArrayLike<number>[], mask: Matrix): number[] =>
  matrix.flatMap((row, index) => Array.from(row).filter((_, token) => mask[index]![token] === 1));

/** Splits rewards into groups of `size`. */
export function consecutive(values: readonly number[], size: number): { rewards: number[] }[] {
  return Array.from({ length: values.length / size }, (_, group) => ({
    rewards: values.slice(group * size, (group + 1) * size),
  }));
}

/** Whether a token that the policy did not sample comes before one that it sampled. */
export const hasGap = (mask: Matrix): boolean => mask.some((row) => /01/.test(row.join("")));
