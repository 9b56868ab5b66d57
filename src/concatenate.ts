type NumberArray = Uint8Array | Int16Array | Int32Array | Float32Array | Float64Array;

/** A new array of this type, with the values of the given arrays one after another. */
export function concatenate<Whole extends NumberArray>(
  type: new (length: number) => Whole,
  arrays: readonly ArrayLike<number>[],
): Whole {
  const whole = new type(arrays.reduce((total, { length }) => total + length, 0));
  let position = 0;
  for (const array of arrays) {
    whole.set(array, position);
    position += array.length;
  }
  return whole;
}
