/**
 * `hone-rl/scorers`: scorers of evaluation libraries as rewards, and rewards as their scorers. A scorer is recognized by
 * its shape, so that none of these libraries is imported here.
 * @module
 */
import type { Outcome, Reply, Reward, RewardContext } from "../agents/types.ts";
import { Semaphore, unlessAborted } from "../base/concurrency.ts";
import { isTemporaryStatus, withRetries } from "../base/http.ts";
import { isObject } from "../base/values.ts";
import { textOf } from "../chat/messages.ts";

type Call = (args: never) => unknown;

/** A scorer of autoevals, openevals, LangSmith, evalite, Mastra or vitest-evals, or a function of your own; for promptfoo see `assertion`. */
export type Scorer =
  /** autoevals, openevals, LangSmith, evalite's `createScorer`, and `({ input, output, expected }) => score`. */
  | Call
  /** evalite's options; with a weight, a name or both, also around any other scorer. */
  | { scorer: Scorer; name?: string; weight?: number }
  /** Mastra. */
  | { run: Call; id?: string; name?: string }
  /** vitest-evals. */
  | { assess: Call; name?: string };

export interface ScorersOptions<Row> {
  /** What the scorers see as the input. Default: the text of the last user's message. */
  input?: (row: Row) => unknown;
  /** Default: `row.expected`, if the row has it. */
  expected?: (row: Row) => unknown;
  /** Default: the reply without its thinking. */
  output?: (reply: Reply, row: Row) => unknown;
  /** Smallest reward that is `correct`. Default: none is, and only the reward counts. */
  threshold?: number;
  /** Scorers that run at the same time. Default 16. */
  concurrency?: number;
  /** Retries of a scorer whose server did not answer, or was busy. Default 3. */
  retries?: number;
  /** Delay before the first retry; doubles with each retry. Default 1. */
  pauseSeconds?: number;
}

/**
 * The weighted sum of the scores, each of which is `metrics["reward/{name}"]`. Weights are 1 divided by the number of
 * scorers unless one is given. `true` is 1 and `false` 0. The reward is unknown if one score is: null, undefined,
 * `notScorable`, `graderError`. A scorer that throws fails the rollout as a failure of the reward.
 *
 * @example
 * import { Levenshtein } from "autoevals";
 * reward: scorers<Row>([Levenshtein, { scorer: isPolite, weight: 0.2 }], { expected: (row) => row.answer })
 */
export function scorers<Row>(list: readonly Scorer[], options: ScorersOptions<Row> = {}): Reward<Row> {
  if (list.length === 0) throw new Error("scorers expects at least one scorer, got none");
  const parts = list.map((scorer, index) => toPart(scorer, index, list.length));
  const { concurrency = 16, retries: limit = 3, pauseSeconds = 1, threshold } = options;
  const semaphore = new Semaphore(concurrency);
  return async (row, reply, context) => {
    const call = callOf(options, row, reply, context);
    let retries = 0;
    const run = (part: Part) =>
      semaphore.run(
        () =>
          // A scorer that never answers must not keep its place after the rollout.
          withRetries(() => unlessAborted((async () => part.run(call))(), context.signal), {
            ...{ retries: limit, pauseSeconds, signal: context.signal, isTemporary },
            onRetry: () => void retries++,
          }),
        context.signal,
      );
    const scored = await Promise.all(parts.map(async (part) => ({ part, ...readScore(part.name, await run(part)) })));
    const metrics: Record<string, number> = { scorer_retries: retries };
    for (const { scores } of scored) {
      for (const { name, score } of scores) if (score !== null) metrics[freeName(metrics, `reward/${name}`)] = score;
    }
    const unknown = scored.some(({ score }) => score === null);
    const reward = unknown ? null : scored.reduce((sum, { score, part }) => sum + part.weight * (score ?? 0), 0);
    const explanation = scored
      .map(({ score, part, scores }) => {
        const name = scores.length === 1 ? scores[0]!.name : part.name;
        const reasons = scores.flatMap(({ reason }) => reason ?? []).join("; ");
        return `${name} ${score ?? "unknown"} x ${part.weight}${reasons === "" ? "" : ` (${reasons})`}`;
      })
      .join("; ");
    const outcome: Outcome = { reward, explanation, metrics };
    return reward === null || threshold === undefined ? outcome : { ...outcome, correct: reward >= threshold };
  };
}

/** What every library's scorers read, each by its own names. */
interface ScorerCall {
  input: unknown;
  output: unknown;
  expected: unknown;
  context: RewardContext;
}

interface Part {
  name: string;
  weight: number;
  run(call: ScorerCall): unknown;
}

function callOf<Row>(options: ScorersOptions<Row>, row: Row, reply: Reply, context: RewardContext<Row>): ScorerCall {
  const asked = context.messages.findLast(({ role }) => role === "user")?.content ?? "";
  const expected = isObject(row) ? row.expected : undefined;
  return {
    input: options.input ? options.input(row) : textOf(asked),
    output: options.output ? options.output(reply, row) : reply.content,
    expected: options.expected ? options.expected(row) : expected,
    context,
  };
}

function toPart(scorer: Scorer, index: number, count: number): Part {
  const weight = 1 / count;
  const named = (name: unknown) => (typeof name === "string" && name !== "" ? name : `scorer${index + 1}`);
  if (typeof scorer === "function") {
    return { name: named(scorer.name), weight, run: (call) => (scorer as (args: object) => unknown)(everyName(call)) };
  }
  if (!isObject(scorer)) throw new Error(`scorers: entry ${index} is ${String(scorer)}, not a scorer`);
  const { name, run, assess, scorer: inner } = scorer as Record<string, unknown>;
  if (typeof run === "function") {
    const own = scorer as { id?: unknown; run(args: object): unknown };
    return {
      name: named(name ?? own.id),
      weight,
      run: ({ input, output, expected }) => own.run({ input, output, groundTruth: expected }),
    };
  }
  if (typeof assess === "function") {
    const judge = scorer as { assess(args: object): unknown };
    return { name: named(name), weight, run: (call) => judge.assess(ofVitest(call)) };
  }
  if (inner !== undefined) {
    const part = toPart(inner as Scorer, index, count);
    const own = (scorer as { weight?: number }).weight ?? part.weight;
    if (!Number.isFinite(own)) throw new Error(`scorers: the weight of entry ${index} is ${own}`);
    return { ...part, weight: own, ...(name === undefined ? {} : { name: named(name) }) };
  }
  const keys = Object.keys(scorer).join(", ");
  throw new Error(`scorers: entry ${index} has the shape of no known scorer; it has ${keys || "no properties"}`);
}

/** autoevals and evalite read the first three names, openevals and LangSmith the others. */
const everyName = ({ input, output, expected }: ScorerCall) => ({
  ...{ input, output, expected },
  ...{ inputs: input, outputs: output, referenceOutputs: expected },
  run: { inputs: input, outputs: output },
  example: { inputs: input, outputs: expected },
});

function ofVitest({ input, output, expected, context }: ScorerCall) {
  const messages = context.messages.map(({ role, content }) => ({ role, content: textOf(content) }));
  const toolCalls = context.messages.flatMap(({ toolCalls: calls = [] }) =>
    calls.map(({ id, name, arguments: given }) => ({ id, name, arguments: given })),
  );
  const session = { messages };
  return { ...{ input, output, expected, toolCalls, session }, run: { output, session, errors: [] } };
}

/**
 * An assertion of promptfoo, whose `value` may name `{{input}}` and `{{expected}}`.
 *
 * @example
 * import { assertions } from "promptfoo";
 * scorers([assertion(assertions.runAssertion, { type: "contains", value: "{{expected}}" })])
 */
export function assertion(
  runAssertion: (args: never) => unknown,
  options: { type: string; value?: unknown; threshold?: number; [option: string]: unknown },
): Scorer {
  const run = runAssertion as (args: object) => unknown;
  return {
    name: options.type,
    scorer: ({ input, output, expected }: ScorerCall) =>
      run({ assertion: options, test: { vars: { input, expected } }, providerResponse: { output } }),
  };
}

interface ReadScore {
  name: string;
  score: number | null;
  reason?: string;
}

/** One score, or the mean of several. */
function readScore(name: string, result: unknown): { score: number | null; scores: ReadScore[] } {
  const list = isObject(result) && Array.isArray(result.results) ? result.results : result;
  if (!Array.isArray(list)) {
    const scores = readOne(name, list);
    return { score: scores[0]!.score, scores };
  }
  if (list.length === 0) throw new Error(`the scorer ${name} returned an empty list`);
  const scores = list.flatMap((each) => readOne(name, each)[0]!);
  const known = scores.flatMap(({ score }) => score ?? []);
  const score = known.length < scores.length ? null : known.reduce((sum, one) => sum + one, 0) / known.length;
  return { score, scores };
}

/** The score itself first, then the parts that promptfoo names. */
function readOne(name: string, result: unknown): ReadScore[] {
  if (!isObject(result)) return [{ name, score: toNumber(name, result) }];
  const { metadata } = result;
  const about = isObject(metadata) ? metadata : {};
  const isUnknown = result.notScorable !== undefined || about.graderError !== undefined;
  if (!isUnknown && !["score", "value", "name", "key"].some((field) => field in result))
    throw new Error(
      `the scorer ${name} returned an object without a score: ${Object.keys(result).join(", ") || "no keys"}`,
    );
  const value = "score" in result ? result.score : result.value;
  const reasons = [result.reason, result.comment, about.rationale, result.explanation, result.notScorable];
  const reason = reasons.find((one) => typeof one === "string" && one !== "") as string | undefined;
  const named = [result.name, result.key].find((one) => typeof one === "string" && one !== "");
  const own = typeof named === "string" ? named : name;
  const first: ReadScore = { name: own, score: isUnknown ? null : toNumber(own, value) };
  if (reason !== undefined) first.reason = reason;
  const inner = isObject(result.namedScores) ? Object.entries(result.namedScores) : [];
  return [first, ...inner.map(([part, score]) => ({ name: part, score: toNumber(part, score) }))];
}

function toNumber(name: string, value: unknown): number | null {
  if (value === null || value === undefined) return null;
  if (typeof value === "boolean") return Number(value);
  if (typeof value === "number" && Number.isFinite(value)) return value;
  throw new Error(
    `the scorer ${name} returned ${typeof value === "number" ? value : `a score of type ${typeof value}`}`,
  );
}

function freeName(taken: object, name: string): string {
  let free = name;
  for (let count = 2; Object.hasOwn(taken, free); count++) free = `${name}#${count}`;
  return free;
}

/** A server that did not answer or was busy. Other errors would be the same again. */
function isTemporary(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const { status, code, cause } = error as { status?: unknown; code?: unknown; cause?: unknown };
  if (typeof status === "number") return isTemporaryStatus(status);
  const lost = typeof code === "string" && /^(ECONN|ETIMEDOUT|EPIPE|EAI_AGAIN|UND_ERR_)/.test(code);
  return lost || /^(APIConnection|TimeoutError)/.test(error.name) || (cause !== undefined && isTemporary(cause));
}

export interface AsScorerOptions<Row> {
  name: string;
  /** The row that the reward reads. */
  row: (call: { input: unknown; expected: unknown }) => Row;
}

/**
 * A reward as a scorer, for autoevals' callers, evalite, openevals, LangSmith, Braintrust and vitest. The reply is the
 * output as text, without tokens.
 *
 * @example
 * const scorer = asScorer<Row>((row, reply) => mathAnswer(reply.text, row.answer), {
 *   name: "math",
 *   row: ({ expected }) => ({ answer: String(expected) }),
 * });
 * evalite("my eval", { data, task, scorers: [scorer] });
 */
export function asScorer<Row>(reward: Reward<Row>, { name, row: toRow }: AsScorerOptions<Row>) {
  return async (call: {
    input?: unknown;
    output?: unknown;
    expected?: unknown;
    inputs?: unknown;
    outputs?: unknown;
    referenceOutputs?: unknown;
  }) => {
    const input = call.input ?? call.inputs;
    const expected = call.expected ?? call.referenceOutputs;
    const output = call.output ?? call.outputs;
    const text = typeof output === "string" ? output : JSON.stringify(output ?? "");
    const asked = typeof input === "string" ? input : JSON.stringify(input ?? "");
    const row = toRow({ input, expected });
    const reply: Reply = {
      ...{ text, content: text, toolCalls: [], problems: [], stopReason: "stop", transcript: () => asked + text },
      message: { role: "assistant", content: text },
      tokens: new Int32Array(0),
      logprobs: new Float32Array(0),
    };
    const graded = await reward(row, reply, {
      task: { id: name, row, origin: name },
      messages: [{ role: "user", content: asked }],
      signal: new AbortController().signal,
    });
    const outcome: Outcome = typeof graded === "number" ? { reward: graded } : graded;
    const rationale = outcome.explanation;
    return {
      ...{ name, key: name, score: outcome.reward },
      ...(rationale === undefined ? {} : { comment: rationale, metadata: { rationale } }),
    };
  };
}
