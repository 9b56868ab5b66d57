/**
 * The values at these positions, in their order.
 * @throws RangeError for a position without a value
 */
export function valuesAt<Value>(values: ArrayLike<Value>, positions: Iterable<number> | ArrayLike<number>): Value[] {
  return Array.from(positions, (position) => {
    const value = values[position];
    if (value === undefined) throw new RangeError(`no value at position ${position}`);
    return value;
  });
}
