/** An experiment of the data and the grader of a reinforcement fine-tuning job of OpenAI. */
import { z } from "zod";
import type { Outcome, Workflow } from "../../agents/types.ts";
import { UserError } from "../../base/errors.ts";
import { isObject } from "../../base/values.ts";
import type { ChatMessage, ToolDefinition } from "../../chat/messages.ts";
import type { Dataset, Task } from "../../data/dataset.ts";
import { matchesSchema } from "../../rewards/text.ts";
import { type GraderOptions, itemCheck, type RftRow, toReward } from "./graders.ts";
import { compileTemplate, messagesSchema, parseGrader, type RftGrader } from "./schema.ts";

export interface OpenaiRftOptions extends GraderOptions {
  /** The rows of the job's training file: `messages`, perhaps `tools`, and the keys that templates read as `item`. */
  train: Dataset<unknown>;
  validation?: Dataset<unknown>;
  grader: RftGrader;
  /** The job's `response_format`: a reply that its schema does not allow gets 0. It is not enforced while sampling. */
  responseFormat?: unknown;
  /** Tools that every row offers, in OpenAI's form. The model's calls are graded, not run. */
  tools?: readonly unknown[];
  /** The conversation, with templates, of rows that have no messages of their own (OpenAI's Evals). */
  prompt?: readonly { role: string; content: string }[];
  /** Passed to the chat template, if it supports it. */
  reasoningEffort?: "low" | "medium" | "high";
}

/**
 * An experiment from the parts of a job of OpenAI's reinforcement fine-tuning: rows, grader, response format, tools.
 *
 * @throws UserError for a grader or a row that cannot be read, with the field
 *
 * @example
 * export default defineExperiment({
 *   ...openaiRft({
 *     train: await openDataset("train.jsonl"),
 *     grader: { type: "string_check", input: "{{ sample.output_text }}", reference: "{{ item.answer }}", operation: "eq" },
 *   }),
 * });
 */
export function openaiRft(options: OpenaiRftOptions): {
  train: Dataset<RftRow>;
  validation?: Dataset<RftRow>;
  workflow: Workflow<RftRow>;
} {
  const grader = parseGrader(options.grader);
  const reward = toReward(grader, options);
  const schema = options.responseFormat === undefined ? undefined : schemaOf(options.responseFormat);
  const shared = (options.tools ?? []).map((tool, index) => toTool(tool, `tools[${index}]`));
  const prompt = options.prompt?.map(({ role, content }) => ({ role, read: compileTemplate(content) }));
  const { reasoningEffort } = options;
  const rows = (dataset: Dataset<unknown>) => toRows(dataset, prompt, itemCheck(grader));
  return {
    train: rows(options.train),
    ...(options.validation === undefined ? {} : { validation: rows(options.validation) }),
    async workflow(task, { model, stage, signal }) {
      const { messages: given, tools = [] } = task.row;
      const messages = given.map(toMessage);
      const offered = [...shared, ...tools.map((tool, index) => toTool(tool, `${task.origin}: tools[${index}]`))];
      const reply = await model.chat(messages, {
        ...(offered.length > 0 ? { tools: offered } : {}),
        ...(reasoningEffort === undefined ? {} : { reasoningEffort }),
      });
      stage("reward");
      if (schema !== undefined) {
        const allowed = await matchesSchema(reply.content, schema);
        if (!allowed.correct) return { ...allowed, explanation: `response_format: ${allowed.explanation}` };
      }
      const outcome = await reward(task.row, reply, { task, messages, signal });
      return outcome as Outcome;
    },
  };
}

const rowSchema = z.looseObject({ messages: messagesSchema, tools: z.array(z.unknown()).optional() });

type Prompt = readonly { role: string; read: ReturnType<typeof compileTemplate> }[];

function toRows(
  dataset: Dataset<unknown>,
  prompt: Prompt | undefined,
  check: ReturnType<typeof itemCheck>,
): Dataset<RftRow> {
  const read = (index: number): Task<RftRow> => {
    const task = dataset.task(index);
    if (!isObject(task.row)) throw new UserError(`${task.origin}: the row is not an object`);
    // Rows of Evals have their values inside of `item`.
    const wrapped = isObject(task.row.item) && task.row.messages === undefined ? task.row.item : task.row;
    if (prompt !== undefined && wrapped.messages === undefined) {
      const messages = prompt.map(({ role, read: render }) => ({
        role,
        content: render({ item: wrapped, sample: {} }),
      }));
      return { ...task, row: { messages, item: wrapped } };
    }
    const parsed = rowSchema.safeParse(wrapped);
    if (!parsed.success) {
      const [issue] = parsed.error.issues;
      throw new UserError(`${task.origin}: ${issue?.path.join(".") || "the row"}: ${issue?.message}`, {
        hint: "a row has messages, as the training file of a job",
      });
    }
    const { messages, tools, ...item } = parsed.data;
    if (messages.at(-1)?.role !== "user") {
      throw new UserError(`${task.origin}: the last message is the ${messages.at(-1)?.role}'s, not the user's`);
    }
    return { ...task, row: tools === undefined ? { messages, item } : { messages, tools, item } };
  };
  for (let index = 0; index < dataset.size; index++) {
    const { row, origin } = read(index);
    try {
      check(row.item);
    } catch (error) {
      if (!(error instanceof UserError)) throw error;
      throw new UserError(`${origin}: ${error.message}`, { hint: error.hint });
    }
  }
  return { ...dataset, task: read };
}

function toMessage({ role, content }: { role: string; content: string }): ChatMessage {
  return { role: role === "developer" ? "system" : (role as ChatMessage["role"]), content };
}

const toolSchema = z.object({
  type: z.literal("function"),
  function: z.object({
    name: z.string(),
    description: z.string().optional(),
    parameters: z.record(z.string(), z.unknown()).optional(),
  }),
});

/** OpenAI's chat form, or that of its Responses API. */
function toTool(tool: unknown, where: string): ToolDefinition {
  const flat =
    isObject(tool) && tool.type === "function" && !("function" in tool) ? { type: "function", function: tool } : tool;
  const parsed = toolSchema.safeParse(flat);
  if (!parsed.success)
    throw new UserError(`${where} is not a function in OpenAI's form: ${parsed.error.issues[0]?.message}`);
  const { name, description, parameters } = parsed.data.function;
  return {
    name,
    ...(description === undefined ? {} : { description }),
    ...(parameters === undefined ? {} : { parameters }),
  };
}

function schemaOf(format: unknown): object | undefined {
  if (!isObject(format)) throw new UserError("response_format is not an object");
  if (format.type === "text") return undefined;
  if (format.type === "json_object") return { type: "object" };
  const inner = isObject(format.json_schema) ? format.json_schema.schema : undefined;
  if (format.type === "json_schema" && isObject(inner)) return inner;
  throw new UserError(
    `response_format of type ${JSON.stringify(format.type)} is not supported: use text, json_object or json_schema`,
  );
}
