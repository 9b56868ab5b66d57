/** OpenAI's grader files as rewards. A grader that fails gives an unknown reward, never 0. */
import { randomUUID } from "node:crypto";
import type { Outcome, Reply, Reward, RewardContext } from "../../agents/types.ts";
import { Semaphore } from "../../base/concurrency.ts";
import { UserError } from "../../base/errors.ts";
import { isTooDeep, postJson } from "../../base/http.ts";
import { quote } from "../../rewards/grade.ts";
import { judge, readVerdict } from "../../rewards/remote.ts";
import { openSandbox } from "../../rewards/sandbox/sandbox.ts";
import type { Sandbox } from "../../rewards/sandbox/types.ts";
import {
  compileTemplate,
  type Namespaces,
  type ParsedGrader,
  parseFormula,
  type SingleGrader,
  type similarityMetrics,
} from "./schema.ts";

/** A row of the data: its messages, and what templates read as `item`. */
export interface RftRow {
  messages: readonly { role: string; content: string }[];
  tools?: readonly unknown[];
  item: Readonly<Record<string, unknown>>;
}

export interface GraderOptions {
  /** Where the models of `score_model` and `label_model` are asked: an OpenAI-compatible base URL, with `/v1`. */
  models?: { url: string; apiKey?: string | undefined; model?: string; concurrency?: number } | undefined;
  /** For `python` graders. Default: opened at the first grade. */
  sandbox?: Sandbox | undefined;
}

type Grade = (values: Namespaces, row: RftRow, reply: Reply, context: RewardContext<RftRow>) => Promise<Outcome>;

/** Longer replies get 0 from graders that compare texts. */
const longestCompared = 200_000;

export function toReward(grader: ParsedGrader, options: GraderOptions): Reward<RftRow> {
  const grade = grader.type === "multi" ? toMulti(grader, options) : toGrade(grader, options);
  const { pass_threshold: threshold } = grader;
  return async (row, reply, context) => {
    const outcome = await grade({ item: row.item, sample: sampleOf(reply) }, row, reply, context);
    if (outcome.reward === null || threshold === undefined) return outcome;
    return { ...outcome, correct: outcome.reward >= threshold };
  };
}

/** @returns a check that throws a UserError for an item without a value that a template of the grader reads */
export function itemCheck(grader: ParsedGrader): (item: RftRow["item"]) => void {
  const all: SingleGrader[] = grader.type === "multi" ? Object.values(grader.graders) : [grader];
  const templates = all.flatMap((one) => {
    if ("reference" in one) return [one.input, one.reference];
    return "input" in one ? one.input.map(({ content }) => content) : [];
  });
  const renders = templates.map(compileTemplate);
  return (item) => {
    for (const render of renders) render({ item, sample: {} });
  };
}

/** `output_json` is the whole reply as JSON, if it is, and not nested too deeply to be written again. */
function sampleOf({ content, toolCalls }: Reply): Record<string, unknown> {
  const tools = toolCalls.map(({ id, name, arguments: given, argumentsText }) => ({
    ...{ id, type: "function" },
    function: { name, arguments: argumentsText ?? JSON.stringify(given) },
  }));
  const sample: Record<string, unknown> = {
    output_text: content,
    output_tools: tools,
    choices: [{ message: { role: "assistant", content, tool_calls: tools } }],
  };
  try {
    const json: unknown = JSON.parse(content);
    if (!isTooDeep(json)) sample.output_json = json;
  } catch {
    // The reply is not JSON.
  }
  return sample;
}

function toMulti(grader: ParsedGrader & { type: "multi" }, options: GraderOptions): Grade {
  const named = Array.isArray(grader.graders)
    ? grader.graders.map((one, index) => [one.name ?? `grader_${index + 1}`, one] as const)
    : Object.entries(grader.graders);
  if (named.length === 0) throw new UserError("graders: the multi grader has none");
  const formula = parseFormula(
    grader.calculate_output,
    named.map(([name]) => name),
  );
  const parts = named.map(([name, one]) => ({ name, grade: toGrade(one, options) }));
  return async (...given) => {
    const graded = await Promise.all(parts.map(async ({ name, grade }) => ({ name, outcome: await grade(...given) })));
    const metrics: Record<string, number> = {};
    for (const { outcome } of graded)
      for (const [name, count] of Object.entries(outcome.metrics ?? {})) metrics[name] = (metrics[name] ?? 0) + count;
    for (const { name, outcome } of graded) if (outcome.reward !== null) metrics[`reward/${name}`] = outcome.reward;
    const why = graded.map(({ name, outcome }) => `${name} ${outcome.reward ?? "unknown"} (${outcome.explanation})`);
    if (graded.some(({ outcome }) => outcome.reward === null))
      return { reward: null, explanation: why.join("; "), metrics };
    const value = formula(new Map(graded.map(({ name, outcome }) => [name, outcome.reward!])));
    const explanation = `${grader.calculate_output} = ${Number(value.toPrecision(6))}; ${why.join("; ")}`;
    return { reward: Number.isFinite(value) ? value : null, explanation, metrics };
  };
}

function toGrade(grader: SingleGrader, options: GraderOptions): Grade {
  switch (grader.type) {
    case "string_check":
      return toStringCheck(grader);
    case "text_similarity":
      return toSimilarity(grader);
    case "score_model":
    case "label_model":
      return toModelGrade(grader, options);
    case "python":
      return toPython(grader, options);
    case "endpoint":
      return toEndpoint(grader);
  }
}

function toStringCheck({ input, reference, operation }: SingleGrader & { type: "string_check" }): Grade {
  const [readInput, readReference] = [compileTemplate(input), compileTemplate(reference)];
  const check = {
    eq: (said: string, wanted: string) => said === wanted,
    ne: (said: string, wanted: string) => said !== wanted,
    neq: (said: string, wanted: string) => said !== wanted,
    like: (said: string, wanted: string) => said.includes(wanted),
    ilike: (said: string, wanted: string) => said.toLowerCase().includes(wanted.toLowerCase()),
  }[operation];
  return async (values) => {
    const [said, wanted] = [readInput(values), readReference(values)];
    const holds = check(said, wanted);
    const explanation = `${quote(said)} ${operation} ${quote(wanted)}: ${holds}`;
    return { reward: Number(holds), correct: holds, explanation };
  };
}

function toSimilarity({
  input,
  reference,
  evaluation_metric: metric,
}: SingleGrader & { type: "text_similarity" }): Grade {
  const [readInput, readReference] = [compileTemplate(input), compileTemplate(reference)];
  return async (values) => {
    const [said, wanted] = [readInput(values), readReference(values)];
    if (said.length > longestCompared) {
      return { reward: 0, explanation: `${said.length} characters; at most ${longestCompared} are compared` };
    }
    const reward = similarity(metric, said, wanted);
    return { reward, explanation: `${metric} of ${quote(said)} and ${quote(wanted)}` };
  };
}

type ModelGrader = SingleGrader & { type: "score_model" | "label_model" };

function toModelGrade(grader: ModelGrader, { models }: GraderOptions): Grade {
  if (models === undefined) {
    throw new UserError(
      `the grader ${grader.name ?? grader.type} asks ${grader.model}, but there is no address to ask at`,
      {
        hint: 'add models: { url: "https://api.openai.com/v1", apiKey: process.env.OPENAI_API_KEY }, or the URL of your own server',
      },
    );
  }
  const input = grader.input.map(({ role, content }) => ({
    role: role === "developer" ? ("system" as const) : role,
    read: compileTemplate(content),
  }));
  const isScore = grader.type === "score_model";
  const [low, high] = (isScore && grader.range) || [0, 1];
  const wanted = isScore
    ? `"result": a number from ${low} to ${high}`
    : `"result": one of ${grader.labels.map((label) => JSON.stringify(label)).join(", ")}`;
  const instruction = `Answer with JSON alone: {"steps": [{"description": "...", "conclusion": "..."}], ${wanted}}`;
  const { sampling_params: sampling } = grader;
  const maxTokens = sampling?.max_completions_tokens ?? sampling?.max_completion_tokens;
  const asked = judge<{ values: Namespaces }>({
    ...{ url: models.url, model: models.model ?? grader.model, retries: 3 },
    ...(models.apiKey === undefined ? {} : { apiKey: models.apiKey }),
    ...(models.concurrency === undefined ? {} : { concurrency: models.concurrency }),
    ...(maxTokens == null ? {} : { maxTokens }),
    temperature: sampling?.temperature ?? 1,
    prompt: ({ values }) => [
      { role: "system", content: instruction },
      ...input.map(({ role, read }) => ({ role, content: read(values) })),
    ],
    read: (answer) => readResult(answer, grader, low, high),
  });
  return async (values, _row, reply, context) => {
    const outcome = await asked({ values }, reply, context as unknown as RewardContext<{ values: Namespaces }>);
    return typeof outcome === "number" ? { reward: outcome } : outcome;
  };
}

/** @returns null if the answer has no result that was allowed, so that the reward is unknown */
function readResult(answer: string, grader: ModelGrader, low: number, high: number): Outcome | null {
  const value = readVerdict(answer, "result");
  if (value === undefined) return null;
  const { result } = value;
  const steps = Array.isArray(value.steps) ? value.steps : [];
  const last: unknown = steps.at(-1)?.conclusion;
  const explanation = `${grader.model}: ${JSON.stringify(result)}${typeof last === "string" ? `, ${last}` : ""}`;
  if (grader.type === "label_model") {
    if (typeof result !== "string" || !grader.labels.includes(result)) return null;
    const passes = grader.passing_labels.includes(result);
    return { reward: Number(passes), correct: passes, explanation };
  }
  const score = typeof result === "string" && result.trim() !== "" ? Number(result) : result;
  if (typeof score !== "number" || !Number.isFinite(score)) return null;
  return { reward: Math.min(high, Math.max(low, score)), explanation };
}

/** As at OpenAI: 2 minutes, 2 GB, no network. */
const pythonLimits = { cpuSeconds: 120, seconds: 120, memoryBytes: 2e9 };

function toPython({ source }: SingleGrader & { type: "python" }, { sandbox: given }: GraderOptions): Grade {
  let opened: Promise<Sandbox> | undefined;
  return async ({ item, sample }, _row, _reply, { signal }) => {
    opened ??= given === undefined ? openSandbox() : Promise.resolve(given);
    const sandbox = await opened;
    // The grader may print, too.
    const mark = randomUUID();
    const main = `import json, runpy, sys\ngrade = runpy.run_path("grader.py")["grade"]\ngiven = json.load(sys.stdin)\nscore = float(grade(given["sample"], given["item"]))\nprint("\\n${mark}" + json.dumps(score))\n`;
    const { ended, exitCode, stdout, stderr } = await sandbox.run({
      command: ["python", "main.py"],
      files: { "grader.py": source, "main.py": main },
      stdin: JSON.stringify({ sample, item }),
      limits: pythonLimits,
      signal,
    });
    const failed = (why: string): Outcome => ({ reward: null, explanation: `the python grader ${why}` });
    if (ended !== "exit") return failed(`exceeded the limit of ${ended}`);
    if (exitCode !== 0) return failed(`failed: ${stderr.trim().split("\n").at(-1)}`);
    const score = Number(stdout.split(mark)[1] ?? Number.NaN);
    return Number.isFinite(score)
      ? { reward: score, explanation: `the python grader returned ${score}` }
      : failed("did not return a finite number");
  };
}

function toEndpoint({ url, headers }: SingleGrader & { type: "endpoint" }): Grade {
  const semaphore = new Semaphore(16);
  return ({ item, sample }, _row, _reply, { task, signal }) =>
    semaphore.run(async () => {
      const body = { sample, item, trace_id: `${task.id}/${randomUUID()}` };
      const { value, retries } = await postJson(url, body, {
        ...{ headers, signal, retries: 2, pauseSeconds: 1, timeoutSeconds: 120 },
      });
      const score = (value as { score?: unknown } | null)?.score;
      const metrics = { endpoint_retries: retries };
      if (typeof score === "number" && Number.isFinite(score))
        return { reward: score, explanation: `${url}: ${score}`, metrics };
      return {
        reward: null,
        explanation: `${url} answered ${JSON.stringify(value)?.slice(0, 200)} instead of {"score": number}`,
        metrics,
      };
    }, signal);
}

// Similarities of two texts from 0 to 1: rapidfuzz' `fuzz.ratio` divided by 100, and the F-measure of rouge-score without stemming.
// Compared with values of these packages, see scripts/proofs/recorders/text-similarity.py.

type Metric = (typeof similarityMetrics)[number];

export function similarity(metric: Metric, input: string, reference: string): number {
  if (metric === "fuzzy_match") return fuzzy(Array.from(input), Array.from(reference));
  const [said, wanted] = [words(input), words(reference)];
  if (metric === "rouge_l") return measure(commonLength(said, wanted), said.length, wanted.length);
  return overlap(said, wanted, Number(metric.slice("rouge_".length)));
}

/** Two empty texts are equal. */
function fuzzy(left: readonly string[], right: readonly string[]): number {
  const length = left.length + right.length;
  return length === 0 ? 1 : (2 * commonLength(left, right)) / length;
}

const words = (text: string): string[] =>
  text
    .toLowerCase()
    .split(/[^a-z0-9]+/)
    .filter((word) => word !== "");

function overlap(said: readonly string[], wanted: readonly string[], size: number): number {
  const count = (list: readonly string[]) => {
    const counts = new Map<string, number>();
    for (let start = 0; start + size <= list.length; start++) {
      const gram = list.slice(start, start + size).join(" ");
      counts.set(gram, (counts.get(gram) ?? 0) + 1);
    }
    return counts;
  };
  const [left, right] = [count(said), count(wanted)];
  let common = 0;
  for (const [gram, number] of left) common += Math.min(number, right.get(gram) ?? 0);
  return measure(common, Math.max(0, said.length - size + 1), Math.max(0, wanted.length - size + 1));
}

/** The harmonic mean of precision and recall. */
function measure(common: number, said: number, wanted: number): number {
  return common === 0 ? 0 : (2 * common) / (said + wanted);
}

/**
 * The length of the longest common subsequence. Each word of 32 bits holds 32 places of `left`, so long replies take
 * a thirty-second of the time of a table.
 */
function commonLength(left: readonly string[], right: readonly string[]): number {
  const size = Math.ceil(left.length / 32);
  const places = new Map<string, Uint32Array>();
  // The places of each of a long reply's many symbols would take gigabytes.
  const wanted = new Set(right);
  for (const [index, symbol] of left.entries()) {
    if (!wanted.has(symbol)) continue;
    const mask = places.get(symbol) ?? new Uint32Array(size);
    mask[index >>> 5]! |= 1 << (index & 31);
    places.set(symbol, mask);
  }
  // A place is 0 if a common subsequence ends there.
  const open = new Uint32Array(size).fill(0xffffffff);
  for (const symbol of right) {
    const mask = places.get(symbol);
    if (mask === undefined) continue;
    let carry = 0;
    for (let word = 0; word < size; word++) {
      const [places32, found] = [open[word]!, open[word]! & mask[word]!];
      const sum = places32 + (found >>> 0) + carry;
      carry = sum > 0xffffffff ? 1 : 0;
      open[word] = sum | (places32 & ~mask[word]!);
    }
  }
  let common = 0;
  for (let index = 0; index < left.length; index++) common += (open[index >>> 5]! >>> (index & 31)) & 1 ? 0 : 1;
  return common;
}
