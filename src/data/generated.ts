/** Creates a dataset from a function that generates each row on demand. */
import { UserError } from "../errors.ts";
import { deriveSeed, uniforms } from "../random.ts";
import type { Dataset } from "./types.ts";

/**
 * A dataset whose rows are made when they are asked for.
 *
 * @param make must depend only on its arguments; `random()` returns uniforms in [0, 1), seeded per row
 * @param options.seed seed of the rows (default 0); the rows also depend on the name
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
    throw new UserError(`the dataset ${name} has the size ${size}, which is not a positive integer`);
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
        throw new UserError(`${origin}: generating the row failed: ${cause instanceof Error ? cause.message : cause}`, {
          cause,
        });
      }
    },
  };
}
