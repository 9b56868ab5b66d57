/** The result of graders. */
import type { Outcome, Reward } from "../agents/types.ts";
import { offThread, TookTooLong } from "../base/off-thread.ts";

/** An outcome with a known reward and `correct`. */
export type Grade = Outcome & { reward: number; correct: boolean; explanation: string };

/** In characters. Graders take linear time; longer replies get 0 without being graded. */
const longestReply = 1_000_000;

const longestExplanation = 2000;

/** The default reward is 1 if correct, else 0. */
export function grade(correct: boolean, explanation: string, reward = correct ? 1 : 0): Grade {
  return { reward, correct, explanation: shorten(explanation, longestExplanation) };
}

/** The grade of a reply that is too long; undefined for all others. */
export function overlong(reply: string): Grade | undefined {
  if (reply.length <= longestReply) return undefined;
  return grade(false, `the reply has ${reply.length} characters, but at most ${longestReply} are graded`);
}

/** A reply for an explanation: quoted, and shortened in the middle if it is long. */
export const quote = (text: string): string => JSON.stringify(shorten(text, 110));

function shorten(text: string, longest: number): string {
  if (text.length <= longest + 10) return text;
  return `${text.slice(0, longest / 2 + 5)} ... ${text.slice(5 - longest / 2)}`;
}

// Combines several rewards.

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

const timeoutSeconds = 5;

/**
 * A grader whose time depends on the experiment's pattern or schema. It runs in a worker thread, and a reply on which it
 * takes too long gets 0. In the main thread it could block the whole run.
 *
 * @param name the module's export that grades
 */
export function gradeOffThread<Rule>(
  module: string,
  name: string,
): (reply: string, rule: Rule, what: string) => Promise<Grade> {
  const onAnotherThread = offThread<[string, Rule], Grade>(new URL(module), name, { timeoutSeconds });
  return async (reply, rule, what) => {
    const refused = overlong(reply);
    if (refused) return refused;
    try {
      return await onAnotherThread([reply, rule]);
    } catch (error) {
      if (error instanceof TookTooLong)
        return grade(false, `${what} took longer than ${timeoutSeconds} s on this reply`);
      throw error;
    }
  };
}

/** Grades with 0 and the reason if the check throws, e.g. a stack overflow in a pattern. */
export function gradeOrZero(check: () => Grade, what: string): Grade {
  try {
    return check();
  } catch (error) {
    return grade(false, `${what} failed on this reply: ${error instanceof Error ? error.message : error}`);
  }
}
