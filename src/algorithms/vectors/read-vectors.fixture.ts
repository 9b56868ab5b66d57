/** Recorded inputs and outputs of other systems' own functions, one case a line; for tests only. */
import { readFileSync } from "node:fs";

export type Value = number | string | boolean | null | readonly Value[] | { readonly [key: string]: Value };

/** `name` starts with the system and its function; compare with `|got - want| <= tol * (1 + |want|)`. */
export interface VectorCase<Inputs, Params, Outputs> {
  name: string;
  inputs: Inputs;
  params: Params;
  outputs: Outputs;
  tol: number;
}

/** The cases of `{family}.jsonl` whose name starts with `prefix`; "NaN" and the infinities stay strings. */
export function readVectors<Inputs, Params, Outputs>(
  family: string,
  prefix: string,
): VectorCase<Inputs, Params, Outputs>[] {
  const lines = readFileSync(new URL(`./${family}.jsonl`, import.meta.url), "utf8")
    .trim()
    .split("\n");
  const cases = lines.map((line) => JSON.parse(line) as VectorCase<Inputs, Params, Outputs>);
  const chosen = cases.filter(({ name }) => name.startsWith(prefix));
  if (chosen.length === 0) throw new Error(`no case of ${family} starts with ${prefix}`);
  return chosen;
}

/** Where `got` differs from `want` by more than the case allows: `[]` when nowhere. Keys that `want` lacks are free. */
export function differences(got: unknown, want: Value, tol: number, path = ""): string[] {
  if (typeof want === "number") {
    const close = typeof got === "number" && Math.abs(got - want) <= tol * (1 + Math.abs(want));
    return close ? [] : [`${path}: got ${String(got)}, want ${want}`];
  }
  if (typeof want === "object" && want !== null) {
    return Object.entries(want).flatMap(([key, part]) =>
      differences((got as Record<string, unknown> | undefined)?.[key], part as Value, tol, `${path}/${key}`),
    );
  }
  return Object.is(got, want) ? [] : [`${path}: got ${String(got)}, want ${String(want)}`];
}
