/** Several rewards as one. */
import type { Outcome, Reward } from "../agents/types.ts";

export interface RewardPart<Row> {
  weight: number;
  reward: Reward<Row>;
}

/**
 * The weighted sum of several rewards, which grade concurrently. Each unweighted reward is reported as
 * `metrics["reward/{name}"]` and explained in the explanation. The sum is unknown when one of them is.
 *
 * @param correct names the part whose `correct` counts; default: the first one that has an opinion
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
  const names = Object.keys(parts);
  if (names.length === 0) throw new Error("combine expects at least one reward, got none");
  for (const name of names) {
    const { weight } = parts[name]!;
    if (!Number.isFinite(weight)) throw new Error(`combine: the weight of ${name} is ${weight}`);
  }
  if (options.correct !== undefined && !names.includes(options.correct)) {
    throw new Error(`combine: there is no reward "${options.correct}" among ${names.join(", ")}`);
  }
  return async (row, reply, context) => {
    const graded = await Promise.all(
      names.map(async (name) => {
        const { weight, reward } = parts[name]!;
        return { name, weight, outcome: toOutcome(name, await reward(row, reply, context)) };
      }),
    );
    const unknown = graded.some(({ outcome }) => outcome.reward === null);
    const sum = graded.reduce((total, { weight, outcome }) => total + weight * (outcome.reward ?? 0), 0);
    const deciding = graded.find(({ name, outcome }) =>
      options.correct === undefined ? outcome.correct !== undefined : name === options.correct,
    );
    const correct = deciding?.outcome.correct;
    return {
      reward: unknown ? null : sum,
      ...(correct === undefined ? {} : { correct }),
      explanation: graded.map(explain).join("; "),
      metrics: Object.assign({}, ...graded.map(metricsOf)),
    };
  };
}

/** A part that is NaN or not a number must fail by its own name, not as a strange sum or as a 0. */
function toOutcome(name: string, given: number | Outcome): Outcome {
  const outcome = typeof given === "object" && given !== null ? given : { reward: given };
  if (outcome.reward === null || Number.isFinite(outcome.reward)) return outcome;
  const shown = typeof outcome.reward === "number" ? outcome.reward : `a value of type ${typeof outcome.reward}`;
  throw new Error(`combine: the reward "${name}" returned ${shown}; a reward is a finite number or null`);
}

function explain({ name, weight, outcome }: { name: string; weight: number; outcome: Outcome }): string {
  const why = outcome.explanation === undefined ? "" : ` (${outcome.explanation})`;
  return `${name} ${outcome.reward ?? "unknown"} x ${weight}${why}`;
}

const metricsOf = ({ name, outcome }: { name: string; outcome: Outcome }) => ({
  ...outcome.metrics,
  ...(outcome.reward === null ? {} : { [`reward/${name}`]: outcome.reward }),
});
