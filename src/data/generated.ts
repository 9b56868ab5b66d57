/** A dataset that is a function: each row is made when it is asked for. */
import { UserError } from "../errors.ts";
import { deriveSeed, uniforms } from "../random.ts";
import type { Dataset } from "./types.ts";

/**
 * @param make must be a function of its arguments alone; `random()` gives uniforms in [0, 1) of the row's own
 * @param options.seed another seed, other rows (default 0); another name does the same
 * @example
 * const sums = generated("sums", 1000, (_index, random) => ({ left: randomInteger(random, 0, 99) }));
 */
export function generated<Row>(
  name: string,
  size: number,
  make: (index: number, random: () => number) => Row,
  options: { seed?: number } = {},
): Dataset<Row> {
  if (!Number.isSafeInteger(size) || size < 1) {
    throw new UserError(`the dataset ${name} has the size ${size}; it takes a whole number above 0`);
  }
  return {
    name,
    size,
    task(index) {
      const origin = `${name}[${index}]`;
      try {
        const row = make(index, uniforms(deriveSeed(options.seed ?? 0, "dataset", name, index)));
        return { id: `${name}/${index}`, row, origin };
      } catch (cause) {
        throw new UserError(`${origin}: making the row failed: ${cause instanceof Error ? cause.message : cause}`, {
          cause,
        });
      }
    },
  };
}
