/** Reads arrays by position, and refuses positions without a value. */

function valueAt<Value>(values: ArrayLike<Value>, position: number): Value {
  const value = values[position];
  if (value === undefined) throw new RangeError(`no value at position ${position}`);
  return value;
}

/** The values at these positions, in their order. */
export const valuesAt = <Value>(values: ArrayLike<Value>, positions: Iterable<number> | ArrayLike<number>): Value[] =>
  Array.from(positions, (position) => valueAt(values, position));

/** The values of the first array, each with the value at the same position of the second one. */
export const zip = <Left, Right>(left: ArrayLike<Left>, right: ArrayLike<Right>): [Left, Right][] =>
  Array.from(left, (value, position) => [value, valueAt(right, position)]);
