/** What a family of recorded cases is: how Hone computes what another system computed, or why it does not. */

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
  /** Why the whole family is left out; also a line of docs/decisions/algorithm-deviations.md. */
  skip?: string;
}

/** By the beginning of the names: `"verl/adv"` is `verl/adv/...`; of several that fit, the longest counts. */
export type Families = Readonly<Record<string, Family>>;

/**
 * Types a family by its cases; the files themselves are not checked beyond what the evaluation reads.
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
