/** Writes a job of OpenAI's reinforcement fine-tuning, or an eval, as an experiment in TypeScript. Pure. */
import { UserError } from "../../base/errors.ts";
import { isObject } from "../../base/values.ts";
import { type Dataset, fromRows } from "../../data/dataset.ts";
import { openaiRft } from "./experiment.ts";
import { messagesSchema, type ParsedGrader, parseGrader } from "./schema.ts";

interface Imported {
  /** By name: train.ts, and grader files in Python. */
  files: Record<string, string>;
  /** What could not be carried over, a sentence each. */
  missing: string[];
  /** Reads all rows as the experiment will. @throws UserError for the first that it cannot read */
  check(rows: Dataset<unknown>): void;
}

interface Job {
  grader: Record<string, unknown>;
  responseFormat?: unknown;
  tools?: unknown[];
  prompt?: { role: string; content: string }[];
  hyperparameters: Record<string, unknown>;
  missing: string[];
}

/**
 * @param job the JSON of a job, of its `method`, of a grader alone, or of an eval with `testing_criteria`
 * @param data the addresses that the experiment opens
 * @throws UserError if it has no grader, or the grader cannot be read
 */
export function importJob(job: unknown, data: { train: string; validation?: string | undefined }): Imported {
  if (isDeep(job)) throw new UserError(`the job is nested more than ${deepest} levels deep`);
  const read = isObject(job) && "testing_criteria" in job ? readEval(job) : readJob(job);
  const { missing } = read;
  const grader = withoutIgnored(read.grader, missing);
  const parsed = parseGrader(grader);
  const files: Record<string, string> = {};
  const written = withSourcesInFiles(grader, files);
  const { config, reasoningEffort } = toConfig(read.hyperparameters, missing);
  const check = (train: Dataset<unknown>) => {
    const { responseFormat, tools = [], prompt } = read;
    const models = { url: "http://127.0.0.1" };
    openaiRft({ train, grader: parsed, responseFormat, tools, models, ...(prompt === undefined ? {} : { prompt }) });
  };
  // Without rows, the grader alone is checked.
  check({ ...fromRows("rows", [{}]), size: 0 });
  const options = [
    `train: await openDataset(file(${JSON.stringify(data.train)})),`,
    ...(data.validation === undefined
      ? []
      : [`validation: await openDataset(file(${JSON.stringify(data.validation)})),`]),
    `grader: ${written},`,
    ...(read.responseFormat === undefined ? [] : [`responseFormat: ${literal(read.responseFormat, 2)},`]),
    ...(read.tools === undefined ? [] : [`tools: ${literal(read.tools, 2)},`]),
    ...(read.prompt === undefined ? [] : [`prompt: ${literal(read.prompt, 2)},`]),
    ...(reasoningEffort === undefined ? [] : [`reasoningEffort: ${JSON.stringify(reasoningEffort)},`]),
    ...(asksModels(parsed) ? [models] : []),
  ];
  const reads = Object.keys(files).length > 0;
  files["train.ts"] = [
    ...(reads ? ['import { readFileSync } from "node:fs";'] : []),
    'import { fileURLToPath } from "node:url";',
    'import { defineExperiment, openDataset } from "hone-rl";',
    'import { openaiRft } from "hone-rl/openai-rft";',
    "",
    "const file = (name: string) => fileURLToPath(new URL(name, import.meta.url));",
    "",
    ...(missing.length === 0
      ? []
      : ["// Not carried over:", ...missing.map((sentence) => `// - ${inOneLine(sentence)}`)]),
    "export default defineExperiment({",
    "  ...openaiRft({",
    ...options.map((line) => `    ${line}`),
    "  }),",
    ...(config === undefined ? [] : [`  config: ${literal(config, 1)},`]),
    "});",
    "",
  ].join("\n");
  return { files, missing, check };
}

const deepest = 100;

function isDeep(job: unknown): boolean {
  let level = [job];
  for (let depth = 0; depth <= deepest && level.length > 0; depth++)
    level = level.flatMap((value) => (typeof value === "object" && value !== null ? Object.values(value) : []));
  return level.length > 0;
}

/** What a file says must not become code of `train.ts`. */
const inOneLine = (sentence: string) => sentence.replace(/[\n\r\u2028\u2029]+/g, " ");

const models = [
  "// Where the grader's models are asked: any OpenAI-compatible server.",
  "    models: {",
  '      url: process.env.GRADER_URL ?? "https://api.openai.com/v1",',
  "      apiKey: process.env.OPENAI_API_KEY,",
  "    },",
].join("\n");

function readJob(job: unknown): Job {
  if (!isObject(job)) throw new UserError("the job is not a JSON object");
  const method = isObject(job.method) ? job.method : job;
  const reinforcement = isObject(method.reinforcement) ? method.reinforcement : method;
  if (method.type !== undefined && method !== job && method.type !== "reinforcement") {
    throw new UserError(`the job's method is ${JSON.stringify(method.type)}, not reinforcement`);
  }
  const grader = isObject(reinforcement.grader)
    ? reinforcement.grader
    : reinforcement === job && "type" in job
      ? job
      : undefined;
  if (!isObject(grader)) throw new UserError("the job has no method.reinforcement.grader");
  const missing: string[] = [];
  const given = grader === job ? {} : reinforcement;
  const { response_format: responseFormat, tools, hyperparameters } = given;
  for (const name of Object.keys(given)) {
    if (
      ["grader", "response_format", "tools", "hyperparameters", "type", "reinforcement"].includes(name) ||
      given === job
    )
      continue;
    missing.push(`${name}: ${JSON.stringify(given[name])}`);
  }
  if (grader !== job && reinforcement !== job) {
    for (const [name, value] of Object.entries(job)) {
      if (name === "method" || ofService.includes(name) || value === null) continue;
      missing.push(`${name} (${JSON.stringify(value)})${name === "model" ? "; choose a model with model.name" : ""}`);
    }
  }
  if (hyperparameters != null && !isObject(hyperparameters))
    missing.push(`hyperparameters: ${JSON.stringify(hyperparameters)}`);
  const found: Job = { grader, hyperparameters: isObject(hyperparameters) ? hyperparameters : {}, missing };
  if (responseFormat != null) found.responseFormat = responseFormat;
  if (Array.isArray(tools)) {
    const functions = tools.filter((tool) => !(isObject(tool) && "server_url" in tool));
    for (const tool of tools) {
      if (functions.includes(tool)) continue;
      missing.push(
        `the tool ${String((tool as { name?: unknown }).name)} of a server; write it with defineTool and useTools`,
      );
    }
    if (functions.length > 0) found.tools = functions;
  } else if (tools != null) missing.push(`tools: ${JSON.stringify(tools)}`);
  return found;
}

/** What OpenAI's service reports of a job; the files are arguments of the command. */
const ofService = [
  ...["id", "object", "status", "error", "created_at", "finished_at", "estimated_finish", "organization_id"],
  ...["fine_tuned_model", "result_files", "trained_tokens", "training_file", "validation_file"],
];

/** The criteria of an eval weigh the same. */
function readEval(job: Record<string, unknown>): Job {
  const criteria = job.testing_criteria;
  if (!Array.isArray(criteria) || criteria.length === 0 || !criteria.every(isObject)) {
    throw new UserError("testing_criteria is not a list of graders");
  }
  const missing: string[] = [];
  const names: string[] = [];
  for (const [index, one] of criteria.entries()) {
    let name = identifier(String(one.name ?? ""), index);
    while (names.includes(name)) name += "_";
    names.push(name);
  }
  const graders = Object.fromEntries(criteria.map((one, index) => [names[index]!, one]));
  const grader =
    criteria.length === 1
      ? criteria[0]!
      : { type: "multi", graders, calculate_output: `(${names.join(" + ")}) / ${names.length}` };
  if (criteria.length > 1) {
    for (const one of criteria) {
      if (one.pass_threshold !== undefined)
        missing.push(`pass_threshold of ${String(one.name)}: the mean of all criteria is the reward`);
    }
  }
  const source = isObject(job.data_source) ? job.data_source : undefined;
  const input = isObject(source?.input_messages) ? source.input_messages.template : undefined;
  const found: Job = { grader, hyperparameters: {}, missing };
  const parsed = messagesSchema.safeParse(input);
  if (parsed.success) found.prompt = parsed.data.map(({ role, content }) => ({ role, content }));
  else
    missing.push(
      "the prompt, which is in the data_source of a run: add prompt: [{ role, content: template }], or messages to the rows",
    );
  return found;
}

const identifier = (name: string, index: number) => {
  const plain = name.replace(/\W+/g, "_").replace(/^_+|_+$/g, "");
  return /^[a-z_]/i.test(plain) ? plain : `criterion_${index + 1}`;
};

/** Fields that change nothing here, each of which is listed. */
function withoutIgnored(grader: Record<string, unknown>, missing: string[]): Record<string, unknown> {
  const name = String(grader.name ?? grader.type);
  const kept = { ...grader };
  const drop = (field: string, why: string) => {
    if (kept[field] !== undefined && kept[field] !== null) missing.push(`${field} of ${name}: ${why}`);
    delete kept[field];
  };
  drop(
    "image_tag",
    "python graders run with this machine's Python; install numpy and others there if they import them",
  );
  drop("rate_limit", "at most 16 requests run at the same time");
  if (isObject(kept.sampling_params)) {
    const { temperature, max_completions_tokens, max_completion_tokens, ...others } = kept.sampling_params;
    for (const [field, value] of Object.entries(others))
      if (value !== null) missing.push(`sampling_params.${field} of ${name}: ${JSON.stringify(value)}`);
    kept.sampling_params = Object.fromEntries(
      Object.entries({ temperature, max_completions_tokens, max_completion_tokens }).filter(
        ([, value]) => value != null,
      ),
    );
  }
  // Graders inside of these graders are refused later.
  const inner = (one: unknown) => (isObject(one) && !("graders" in one) ? withoutIgnored(one, missing) : one);
  if (Array.isArray(kept.graders)) kept.graders = kept.graders.map(inner);
  else if (isObject(kept.graders))
    kept.graders = Object.fromEntries(Object.entries(kept.graders).map(([key, one]) => [key, inner(one)]));
  return kept;
}

/** An expression among literals. */
class Code {
  constructor(readonly text: string) {}
}

/** Sources in Python become files beside the script. */
function withSourcesInFiles(grader: Record<string, unknown>, files: Record<string, string>): string {
  const replaced = JSON.parse(JSON.stringify(grader), (_key, value: unknown) => {
    if (!isObject(value) || value.type !== "python" || typeof value.source !== "string") return value;
    const count = Object.keys(files).length;
    const name = `grader${count === 0 ? "" : `-${count + 1}`}.py`;
    files[name] = value.source;
    return { ...value, source: new Code(`readFileSync(file("./${name}"), "utf8")`) };
  }) as unknown;
  return literal(replaced, 2);
}

function toConfig(hyperparameters: Record<string, unknown>, missing: string[]) {
  const { batch_size, n_epochs, eval_interval, eval_samples, reasoning_effort, ...others } = hyperparameters;
  const drop = (name: string, value: unknown, why: string) =>
    void missing.push(`hyperparameters.${name} (${JSON.stringify(value)}): ${why}`);
  const isLeft = (value: unknown) => value === undefined || value === null || value === "auto";
  const count = (name: string, value: unknown) => {
    if (isLeft(value)) return undefined;
    if (Number.isSafeInteger(value) && Number(value) > 0) return value;
    return drop(name, value, "it is not a positive integer");
  };
  for (const [name, value] of Object.entries(others)) {
    if (isLeft(value)) continue;
    const isMultiplier = name.endsWith("_multiplier");
    const why = "a multiple of a value that is not published; see training.learning_rate and rllm.rollout.n";
    drop(name, value, isMultiplier ? why : "it has no counterpart");
  }
  const reasoningEffort = ["low", "medium", "high"].find((effort) => effort === reasoning_effort);
  if (reasoningEffort === undefined && !isLeft(reasoning_effort))
    drop("reasoning_effort", reasoning_effort, "it is not low, medium or high");
  const trainer = { total_epochs: count("n_epochs", n_epochs), test_freq: count("eval_interval", eval_interval) };
  const rollout = { n_val: count("eval_samples", eval_samples) };
  const config = clean({
    data: { train_batch_size: count("batch_size", batch_size) },
    rllm: { trainer, rollout },
  });
  return { config: config as object | undefined, reasoningEffort };
}

/** Without what is undefined, and without objects that are then empty. */
function clean(value: unknown): unknown {
  if (!isObject(value)) return value;
  const kept = Object.entries(value).flatMap(([key, inner]) => {
    const found = clean(inner);
    return found === undefined ? [] : [[key, found]];
  });
  return kept.length === 0 ? undefined : Object.fromEntries(kept);
}

const asksModels = (grader: ParsedGrader): boolean =>
  grader.type === "multi"
    ? Object.values(grader.graders).some(({ type }) => type === "score_model" || type === "label_model")
    : grader.type === "score_model" || grader.type === "label_model";

/** A value as TypeScript, as a person would write it. */
function literal(value: unknown, depth: number): string {
  const indent = "  ".repeat(depth + 1);
  const end = "  ".repeat(depth);
  const written = (parts: string[], open: string, close: string) => {
    const line = `${open}${parts.join(", ")}${close}`;
    if (parts.length === 0) return open.trim() + close.trim();
    if (line.length + end.length < 90 && !line.includes("\n")) return line;
    return `${open.trim()}\n${parts.map((part) => `${indent}${part},\n`).join("")}${end}${close.trim()}`;
  };
  if (Array.isArray(value))
    return written(
      value.map((part) => literal(part, depth + 1)),
      "[",
      "]",
    );
  if (value instanceof Code) return value.text;
  if (!isObject(value)) return JSON.stringify(value);
  const entries = Object.entries(value).map(([key, inner]) => {
    const name = /^[a-z_$][\w$]*$/i.test(key) && key !== "__proto__" ? key : `[${JSON.stringify(key)}]`;
    return `${name}: ${literal(inner, depth + 1)}`;
  });
  return written(entries, "{ ", " }");
}
