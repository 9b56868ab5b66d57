/** A family of recorded cases: how Hone computes the values that another system computed, or why it does not. */

/** One recorded call of another system's function; `name` starts with the system and the function. */
export interface VectorCase<Inputs = unknown, Params = unknown, Outputs = unknown> {
  name: string;
  inputs: Inputs;
  params: Params;
  outputs: Outputs;
  /** Compare with `|got - want| <= tol * (1 + |want|)`. */
  tol: number;
}

/** A deliberate difference: the reason, and Hone's result. The values are compared with `instead`. */
export interface Deviation {
  why: string;
  instead: unknown;
}

export interface Family {
  /** The outputs that Hone computes, under the recorded names. Absent: the whole family is skipped, see `skip`. */
  evaluate?(vector: VectorCase): unknown;
  /** Single cases with a deliberate difference; they count as skipped if the values equal `instead`. */
  deviates?(vector: VectorCase): Deviation | undefined;
  /** Why the whole family is skipped; also a line in docs/decisions/algorithm-deviations.md. */
  skip?: string;
}

/** Families by the prefix of the names: `"verl/adv"` matches `verl/adv/...`. If several match, the longest is used. */
export type Families = Readonly<Record<string, Family>>;

/**
 * Gives a family the type of its cases. The files are not validated.
 *
 * @example
 * "rllm/adv/rloo": family<{ rewards_by_group: number[][] }, object>(({ inputs }) => ({
 *   advantages_by_group: rloo(inputs.rewards_by_group),
 * })),
 */
export function family<Inputs, Params, Outputs = unknown>(
  evaluate: (vector: VectorCase<Inputs, Params, Outputs>) => unknown,
  deviates?: (vector: VectorCase<Inputs, Params, Outputs>) => Deviation | undefined,
): Family {
  return {
    evaluate: evaluate as (vector: VectorCase) => unknown,
    ...(deviates ? { deviates: deviates as (vector: VectorCase) => Deviation | undefined } : {}),
  };
}

export const skipped = (why: string): Family => ({ skip: why });
