/** Whether a server's log-probabilities changed as the learner's did. */
import { mean } from "../../../statistics.ts";

/**
 * Two hypotheses: the server's change is the learner's plus noise, or it is noise alone. Both have the same likelihood
 * where the server's change reaches half of the learner's.
 *
 * @param least root mean square below which a change of the learner shows nothing
 * @returns the distance from there in standard deviations, positive if the server changed too; 0 if it shows nothing
 */
export function changeEvidence(learner: Float32Array, server: Float32Array, least: number): number {
  const size = norm(learner);
  if (!(rootMeanSquare(learner) > least)) return 0;
  const projected = learner.reduce((sum, value, index) => sum + value * server[index]!, 0) / size;
  const noise = Math.min(rootMeanSquare(server), rootMeanSquare(minus(server, learner)));
  return (projected - size / 2) / noise;
}

const norm = (values: Float32Array) => Math.hypot(...values);

export const rootMeanSquare = (values: Float32Array) => norm(values) / Math.sqrt(values.length);

export const minus = (left: Float32Array, right: Float32Array) =>
  left.map((value, index) => value - (right[index] ?? Number.NaN));

/** The mean absolute difference. */
export const distance = (left: Float32Array, right: Float32Array) => mean(minus(left, right).map(Math.abs));
