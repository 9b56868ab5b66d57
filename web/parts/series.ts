/** What charts compute from the values of a curve. */

/**
 * Exponential moving average, corrected at its start, so that the first value is itself.
 * @param weight of the past, from 0 to below 1
 */
export function smooth(values: readonly (number | null)[], weight: number): (number | null)[] {
  let average = 0;
  let share = 0;
  return values.map((value) => {
    if (value === null || !Number.isFinite(value)) return value;
    average = weight * average + (1 - weight) * value;
    share = weight * share + (1 - weight);
    return average / share;
  });
}

/** The sum of the values up to each place; an unknown value adds nothing. */
export function cumulative(values: readonly (number | null)[]): number[] {
  let sum = 0;
  return values.map((value) => {
    sum += value !== null && Number.isFinite(value) ? value : 0;
    return sum;
  });
}

/** What an axis has a place for: one NaN would leave the whole chart empty, and a logarithmic axis starts above 0. */
export const drawable = (values: readonly (number | null)[], logarithmic: boolean): (number | null)[] =>
  values.map((value) => (value !== null && Number.isFinite(value) && (value > 0 || !logarithmic) ? value : null));
