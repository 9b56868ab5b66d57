/** The grader files of OpenAI's reinforcement fine-tuning and Evals, and what Hone refuses of them. */
import { z } from "zod";
import { UserError } from "../../errors.ts";

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
