/** Replies that should be JSON. They are sampled freely, then checked, and the results are metrics. */
import { z } from "zod";
import type { ChatMessage, ParsedReply } from "../../chat/messages.ts";
import { withinTime } from "../../concurrency/within-time.ts";
import { isObject } from "../../is-object.ts";
import type { CallContext, Notices } from "../calls/model-call.ts";
import { type Body, badParameter } from "../requests/read-parameters.ts";
import { demand } from "./guarantees.ts";

export interface JsonFormat {
  /** Undefined: any JSON. */
  schema: Body | undefined;
}

const lostSchema =
  "the AI SDK asked for JSON without its schema, which the model therefore does not see; createOpenAICompatible({ supportsStructuredOutputs: true, ... }) sends it";

/**
 * @param at the parameter, whose field `json_schema` holds schema and strict in the chat API
 * @throws GatewayError when the format is not known or its schema cannot be used
 */
export function readJsonFormat(format: Body | undefined, at: string, context: CallContext): JsonFormat | undefined {
  if (format === undefined || format.type === "text") return undefined;
  if (format.type === "json_object") {
    if (context.userAgent.includes("ai-sdk/")) context.notices.add("json_without_schema", lostSchema);
    return { schema: undefined };
  }
  const [holder, path] = isObject(format.json_schema) ? [format.json_schema, `${at}.json_schema`] : [format, at];
  const { schema, strict } = holder;
  if (format.type !== "json_schema" || !isObject(schema)) {
    throw badParameter(at, `${at} must be text, json_object, or json_schema with a schema`);
  }
  if (strict === true) demand(context, `${path}.strict`, "a reply that matches a schema");
  compile(schema, `${path}.schema`);
  return { schema };
}

/** Asks the model for the schema in the system message, which is added if there is none. */
export function withJsonInstruction(messages: readonly ChatMessage[], format: JsonFormat | undefined) {
  if (format?.schema === undefined) return messages;
  const instruction = `Answer with a JSON value alone that is valid under this JSON Schema: ${JSON.stringify(format.schema)}`;
  const [first, ...rest] = messages;
  if (first?.role !== "system") return [{ role: "system" as const, content: instruction }, ...messages];
  return [{ ...first, content: `${first.content}\n\n${instruction}` }, ...rest];
}

/** A reply that calls tools is not the answer that should be JSON. */
type Answer = Pick<ParsedReply, "content" | "toolCalls">;

/** What is wrong with the reply, as a clause of the rollout's failure if its agent throws. */
export const jsonFault = ({ content, toolCalls }: Answer, format: JsonFormat): string | undefined =>
  toolCalls.length > 0 || matches(content, format) ? undefined : "is not the requested JSON";

export function countJson({ content, toolCalls }: Answer, format: JsonFormat, notices: Notices): void {
  if (toolCalls.length > 0) return;
  if (matches(content, format)) notices.add("json_valid", "replies are checked against the requested JSON");
  else notices.add("json_invalid", `a reply is not the requested JSON: ${content.slice(0, 100) || "it is empty"}`);
}

/** A client's schema may have a pattern, or alternatives, that take exponential time on some replies. */
const maxCheckMs = 500;

function matches(text: string, { schema }: JsonFormat): boolean {
  try {
    const value: unknown = JSON.parse(text);
    if (schema === undefined) return true;
    const type = compile(schema, "");
    return withinTime(maxCheckMs, () => type.safeParse(value).success) ?? false;
  } catch {
    return false;
  }
}

/** Compiled schemas by their text: an agent sends the same one with each call. */
const compiled = new Map<string, z.ZodType>();
const maxCompiled = 100;

function compile(schema: Body, parameter: string): z.ZodType {
  const key = JSON.stringify(schema);
  const known = compiled.get(key);
  if (known !== undefined) return known;
  try {
    const type = z.fromJSONSchema(schema as Parameters<typeof z.fromJSONSchema>[0]);
    if (compiled.size >= maxCompiled) compiled.clear();
    compiled.set(key, type);
    return type;
  } catch (error) {
    const reason = error instanceof Error ? error.message : error;
    throw badParameter(parameter, `${parameter} is not a usable JSON Schema: ${reason}`);
  }
}
