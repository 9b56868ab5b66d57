/** Combines several rewards. */
import type { Outcome, Reward } from "../agents/types.ts";

/** A reward with its weight in the sum. */
export interface RewardPart<Row> {
  weight: number;
  reward: Reward<Row>;
}

/**
 * The weighted sum of several rewards, which grade concurrently. Each unweighted reward is reported as
 * `metrics["reward/{name}"]` and in the explanation. The sum is unknown if one of them is.
 *
 * @param options.correct the part whose `correct` counts; default: the first part that has one
 * @example
 * combine<Row>({
 *   answer: { weight: 0.9, reward: (row, reply) => mathAnswer(reply.text, row.answer) },
 *   format: { weight: 0.1, reward: (_row, reply) => hasTags(reply.text, ["think", "answer"]) },
 * })
 */
export function combine<Row>(
  parts: Readonly<Record<string, RewardPart<Row>>>,
  options: { correct?: string } = {},
): Reward<Row> {
  const named = Object.entries(parts);
  if (named.length === 0) throw new Error("combine expects at least one reward, got none");
  for (const [name, { weight }] of named) {
    if (!Number.isFinite(weight)) throw new Error(`combine: the weight of ${name} is ${weight}`);
  }
  if (options.correct !== undefined && !Object.hasOwn(parts, options.correct)) {
    throw new Error(
      `combine: correct is "${options.correct}", which is not one of the rewards ${Object.keys(parts).join(", ")}`,
    );
  }
  return async (row, reply, context) => {
    const graded = await Promise.all(
      named.map(async ([name, { weight, reward }]) => ({
        name,
        weight,
        outcome: toOutcome(name, await reward(row, reply, context)),
      })),
    );
    const unknown = graded.some(({ outcome }) => outcome.reward === null);
    const sum = graded.reduce((total, { weight, outcome }) => total + weight * (outcome.reward ?? 0), 0);
    const deciding = graded.find(({ name, outcome }) =>
      options.correct === undefined ? outcome.correct !== undefined : name === options.correct,
    );
    const combined: Outcome = {
      reward: unknown ? null : sum,
      explanation: graded.map(explain).join("; "),
      metrics: Object.assign({}, ...graded.map(metricsOf)),
    };
    if (deciding?.outcome.correct !== undefined) combined.correct = deciding.outcome.correct;
    return combined;
  };
}

/** Reports the part that is not a number, since the sum would hide it. */
function toOutcome(name: string, given: number | Outcome): Outcome {
  const outcome = typeof given === "object" && given !== null ? given : { reward: given };
  if (outcome.reward === null || Number.isFinite(outcome.reward)) return outcome;
  const shown = typeof outcome.reward === "number" ? outcome.reward : `a value of type ${typeof outcome.reward}`;
  throw new Error(`combine: the reward "${name}" returned ${shown}; a reward must be a finite number or null`);
}

function explain({ name, weight, outcome }: { name: string; weight: number; outcome: Outcome }): string {
  const why = outcome.explanation === undefined ? "" : ` (${outcome.explanation})`;
  return `${name} ${outcome.reward ?? "unknown"} x ${weight}${why}`;
}

const metricsOf = ({ name, outcome: { reward, metrics } }: { name: string; outcome: Outcome }) =>
  reward === null ? metrics : { ...metrics, [`reward/${name}`]: reward };
