/** The files of OpenAI's graders: their schema, templates and formulas, and what Hone refuses of them. */

import { z } from "zod";
import { UserError } from "../../base/errors.ts";
import { beginningOf } from "../../base/text.ts";
import { isObject, ownValue } from "../../base/values.ts";

const text = z.string();
const about = { name: text.optional(), pass_threshold: z.number().optional(), id: text.optional() };

/** Chat messages whose content is a template. Parts of text are joined. */
const content = z.union([
  text,
  z.object({ type: z.enum(["input_text", "text", "output_text"]), text }).transform((part) => part.text),
  z
    .array(z.union([text, z.object({ type: z.enum(["input_text", "text", "output_text"]), text })]))
    .transform((parts) => parts.map((part) => (typeof part === "string" ? part : part.text)).join("")),
]);
export const messagesSchema = z
  .array(
    z.strictObject({
      role: z.enum(["system", "developer", "user", "assistant"]),
      content,
      type: z.literal("message").optional(),
    }),
  )
  .min(1);

const stringCheck = z.strictObject({
  ...about,
  type: z.literal("string_check"),
  input: text,
  reference: text,
  operation: z.enum(["eq", "ne", "neq", "like", "ilike"]),
});

export const similarityMetrics = [
  "fuzzy_match",
  "rouge_1",
  "rouge_2",
  "rouge_3",
  "rouge_4",
  "rouge_5",
  "rouge_l",
] as const;

const textSimilarity = z.strictObject({
  ...about,
  type: z.literal("text_similarity"),
  input: text,
  reference: text,
  evaluation_metric: z.enum(similarityMetrics, {
    error: ({ input }) =>
      ["bleu", "gleu", "meteor", "cosine"].includes(String(input))
        ? `${String(input)} is not computed by Hone: use ${similarityMetrics.join(", ")}, or a python grader`
        : `expected one of ${similarityMetrics.join(", ")}`,
  }),
});

const sampling = z
  .strictObject({
    temperature: z.number().nullish(),
    max_completions_tokens: z.number().nullish(),
    max_completion_tokens: z.number().nullish(),
  })
  .optional();

const scoreModel = z.strictObject({
  ...about,
  type: z.literal("score_model"),
  input: messagesSchema,
  model: text,
  range: z
    .tuple([z.number(), z.number()])
    .refine(([low, high]) => low < high, "the first number is not below the second")
    .optional(),
  sampling_params: sampling,
});

const labelModel = z
  .strictObject({
    ...about,
    type: z.literal("label_model"),
    input: messagesSchema,
    model: text,
    labels: z.array(text).min(1),
    passing_labels: z.array(text).min(1),
    sampling_params: sampling,
  })
  .refine(({ labels, passing_labels }) => passing_labels.every((label) => labels.includes(label)), {
    path: ["passing_labels"],
    error: "one of them is not in labels",
  });

const python = z.strictObject({ ...about, type: z.literal("python"), source: text });

const endpoint = z.strictObject({
  ...about,
  type: z.literal("endpoint"),
  url: z.url(),
  headers: z.record(text, text).optional(),
});

const single = z.discriminatedUnion("type", [stringCheck, textSimilarity, scoreModel, labelModel, python, endpoint]);

const multi = z.strictObject({
  ...about,
  type: z.literal("multi"),
  /** A map, or a list whose members have names. */
  graders: z.union([z.record(text, single), z.array(single)]),
  calculate_output: text,
});

const graderSchema = z.discriminatedUnion("type", [
  stringCheck,
  textSimilarity,
  scoreModel,
  labelModel,
  python,
  endpoint,
  multi,
]);

/** A grader as OpenAI's reinforcement fine-tuning defines it in JSON. */
export type RftGrader = z.input<typeof graderSchema>;
export type SingleGrader = z.output<typeof single>;
export type ParsedGrader = z.output<typeof graderSchema>;

/** @throws UserError that names the field */
export function parseGrader(value: unknown): ParsedGrader {
  const parsed = graderSchema.safeParse(value);
  if (parsed.success) return parsed.data;
  const problems = parsed.error.issues.flatMap((issue) => describe(issue, []));
  throw new UserError(`the grader: ${[...new Set(problems)].slice(0, 5).join("; ")}`, {
    hint: "grader files: docs/guide/openai-rft.md lists what is read",
  });
}

/** A union reports each of its members: the longest path is of the member that was meant. */
function describe(issue: z.core.$ZodIssue, outer: PropertyKey[]): string[] {
  const path = [...outer, ...issue.path];
  if (issue.code === "invalid_union" && issue.errors.length > 0) {
    const members = issue.errors.map((issues) => issues.flatMap((inner) => describe(inner, path)));
    return members.sort((left, right) => depth(right) - depth(left))[0]!;
  }
  return [`${path.join(".") || "it"}: ${issue.message}`];
}

const depth = (problems: string[]) => Math.max(...problems.map((problem) => problem.split(":")[0]!.split(".").length));

// Templates such as `{{ item.answers[0] }}` and `{{ sample.output_text }}`.

export interface Namespaces {
  /** The row without its messages. */
  item: Readonly<Record<string, unknown>>;
  sample: Readonly<Record<string, unknown>>;
}

const sampleParts = ["output_text", "output_json", "output_tools", "choices"];

/**
 * @returns the text with values in place of references: text as it is, other values as JSON. A part of the sample that the
 * reply does not have is empty.
 * @throws UserError for an unknown namespace, now; and later for an item without the value
 */
export function compileTemplate(template: string): (values: Namespaces) => string {
  const pieces = template
    .split(/\{\{(.*?)\}\}/s)
    .map((piece, index) => (index % 2 === 0 ? asText(piece) : toPath(piece, template)));
  return (values) =>
    pieces
      .map((piece) => {
        if (typeof piece === "string") return piece;
        const found = valueAt(values, piece);
        if (found === undefined && piece[0] === "item") {
          throw new UserError(`the item has no ${piece.slice(1).join(".")}, which the grader reads`, {
            hint: `its keys are ${Object.keys(values.item).join(", ") || "none"}`,
          });
        }
        return typeof found === "string" ? found : found === undefined ? "" : JSON.stringify(found);
      })
      .join("");
}

/** `{{ item.answer }` would be compared as it is. */
function asText(piece: string): string {
  const open = /\{\{\s*(item|sample)\b.{0,40}/.exec(piece);
  if (open !== null) throw new UserError(`${open[0]} is not closed by }}`);
  return piece;
}

function toPath(reference: string, template: string): string[] {
  const text = reference.trim();
  if (!/^\w+(\.[\w-]+|\[\d+\]|\[(["'])[^"']+\2\])*$/.test(text)) {
    throw new UserError(`{{${reference}}} is not a reference such as {{ item.answer }} or {{ sample.output_text }}`);
  }
  const path = [...text.matchAll(/[\w-]+|(["'])([^"']+)\1/g)].map(([part, , quoted]) => quoted ?? part);
  const [namespace, part] = path;
  if (namespace === "item") return path;
  if (namespace === "sample" && part !== undefined && sampleParts.includes(part)) return path;
  const shown = JSON.stringify(beginningOf(template, 60));
  throw new UserError(
    `${text} in ${shown} is not supported: templates read item, and of sample ${sampleParts.join(", ")}`,
  );
}

function valueAt(values: Namespaces, path: readonly string[]): unknown {
  return path.reduce<unknown>((inner, part) => {
    if (Array.isArray(inner)) return inner[Number(part)];
    return isObject(inner) ? ownValue(inner, part) : undefined;
  }, values);
}

// The formula of a `multi` grader: `0.8 * answer + 0.2 * min(style, 1)`. Evaluates to NaN or infinity as arithmetic does.

type Values = ReadonlyMap<string, number>;
type Node = (values: Values) => number;

const functions: Readonly<Record<string, { arity: number; apply: (...values: number[]) => number }>> = {
  min: { arity: -1, apply: Math.min },
  max: { arity: -1, apply: Math.max },
  abs: { arity: 1, apply: Math.abs },
  floor: { arity: 1, apply: Math.floor },
  ceil: { arity: 1, apply: Math.ceil },
  exp: { arity: 1, apply: Math.exp },
  sqrt: { arity: 1, apply: Math.sqrt },
  log: { arity: 1, apply: Math.log },
};

const deepest = 100;
/** Of its pieces. A sum of many is as many calls deep. */
const longest = 1000;

/**
 * @param names of the graders
 * @throws UserError with the position of what cannot be read
 */
export function parseFormula(formula: string, names: readonly string[]): Node {
  const wrong = names.find((name, index) => /^\d/.test(name) || names.indexOf(name) !== index);
  if (wrong !== undefined)
    throw new UserError(`the graders need names of their own that start with a letter, not ${JSON.stringify(wrong)}`);
  const tokens = [
    ...formula.matchAll(
      /\s*(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|[\p{L}_][\p{L}\p{M}\p{N}_]*|\*\*|\S)/guy,
    ),
  ];
  if (tokens.length > longest)
    throw new UserError(
      `calculate_output has ${tokens.length} numbers, names and operators; at most ${longest} are read`,
    );
  let at = 0;
  let depth = 0;
  const next = () => tokens[at]?.[1];
  const fail = (expected: string): never => {
    const found =
      next() === undefined
        ? "its end"
        : `"${next()}" at ${tokens[at]!.index + tokens[at]![0].length - next()!.length + 1}`;
    throw new UserError(`calculate_output ${JSON.stringify(formula)}: expected ${expected}, found ${found}`, {
      hint: `the graders are ${names.join(", ")}; functions: ${Object.keys(functions).join(", ")}; operators: + - * / ^`,
    });
  };
  const take = (token: string) => (next() === token ? at++ : fail(`"${token}"`));

  function sum(): Node {
    if (++depth > deepest) fail("less nesting");
    let left = product();
    while (next() === "+" || next() === "-") {
      const [operator, first] = [tokens[at++]![1], left];
      const second = product();
      left = operator === "+" ? (values) => first(values) + second(values) : (values) => first(values) - second(values);
    }
    depth--;
    return left;
  }
  function product(): Node {
    let left = signed();
    while (next() === "*" || next() === "/") {
      const [operator, first] = [tokens[at++]![1], left];
      const second = signed();
      left = operator === "*" ? (values) => first(values) * second(values) : (values) => first(values) / second(values);
    }
    return left;
  }
  /** `-2 ^ 2` is -4, and `2 ^ -1` is 0.5. */
  function signed(): Node {
    if (++depth > deepest) fail("less nesting");
    const sign = next() === "-" || next() === "+" ? tokens[at++]![1] : undefined;
    const inner = sign === undefined ? power() : signed();
    depth--;
    return sign === "-" ? (values) => -inner(values) : inner;
  }
  function power(): Node {
    const base = operand();
    if (next() !== "^") return base;
    at++;
    const exponent = signed();
    return (values) => base(values) ** exponent(values);
  }
  function operand(): Node {
    const token = next();
    if (token === undefined) return fail("a value");
    if (token === "(") {
      at++;
      const inner = sum();
      take(")");
      return inner;
    }
    if (/^[\d.]/.test(token)) {
      at++;
      const value = Number(token);
      return Number.isNaN(value) ? fail("a number") : () => value;
    }
    if (names.includes(token) && tokens[at + 1]?.[1] !== "(") {
      at++;
      return (values) => values.get(token)!;
    }
    const called = Object.hasOwn(functions, token) ? functions[token] : undefined;
    if (called === undefined) return fail("a grader, a number or a function");
    at++;
    take("(");
    const given = [sum()];
    while (next() === ",") {
      at++;
      given.push(sum());
    }
    if (called.arity >= 0 && given.length !== called.arity) fail(`${called.arity} value for ${token}`);
    take(")");
    return (values) => called.apply(...given.map((value) => value(values)));
  }

  const node = sum();
  if (at < tokens.length) fail("an operator");
  return node;
}
