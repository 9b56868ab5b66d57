/**
 * What requests of all APIs have in common: parameters, sampling, JSON formats, contents, tools. Each parameter is typed, and none is
 * ignored silently.
 */
import { z } from "zod";
import { isTemperature, leastTemperature } from "../backends/engine.ts";
import { withinTime } from "../base/concurrency.ts";
import { parseJson } from "../base/json.ts";
import { isObject } from "../base/values.ts";
import {
  type ChatMessage,
  type Content,
  type ImagePart,
  normalizeContent,
  type ParsedReply,
  type TextPart,
  type ToolCall,
  type ToolDefinition,
} from "../chat/messages.ts";
import type { GenerateParams } from "../rollout/types.ts";
import { GatewayError } from "./http.ts";
import type { CallContext, Notices } from "./types.ts";

// The rules of parameters, and how one is read.

export type Body = Record<string, unknown>;

/**
 * What happens to a parameter:
 * - `used`
 * - `ignored`: it does not change what is sampled; the reason is logged once, and each use is counted
 * - `refused`: without it the request would mean something else. The values in `unless` request nothing and are accepted.
 */
export type Rule = "used" | { ignored: string } | { refused: string; unless?: readonly unknown[] };
export type Rules = Readonly<Record<string, Rule>>;

/** @param names separated by spaces */
export const used = (names: string): Record<string, Rule> =>
  Object.fromEntries(names.split(" ").map((name) => [name, "used"]));

/** The reason for ignoring a parameter. */
export const noEffect = "it does not change what is sampled";

/**
 * A parameter that is null counts as missing.
 * @throws GatewayError naming a parameter that is unknown or refused
 */
export function checkParameters(body: Body, rules: Rules, notices: Notices): void {
  for (const [name, value] of Object.entries(body)) {
    if (value === null || value === undefined) continue;
    const rule = Object.hasOwn(rules, name) ? rules[name] : undefined;
    if (rule === "used") continue;
    if (rule === undefined) throw badParameter(name, `unknown parameter ${JSON.stringify(name)}`);
    if ("ignored" in rule) {
      notices.add(`ignored_parameter/${name}`, `the parameter ${name} is ignored: ${rule.ignored}`);
    } else if (!rule.unless?.some((neutral) => JSON.stringify(neutral) === JSON.stringify(value))) {
      throw badParameter(name, `${name} is not supported: ${rule.refused}`);
    }
  }
}

export const badParameter = (name: string, message: string) =>
  new GatewayError("invalid_request", message, { parameter: name });

/** Makes a reader of optional parameters. */
const reader =
  <Value>(what: string, isValid: (value: unknown) => value is Value) =>
  (body: Body, name: string): Value | undefined => {
    const value = body[name] ?? undefined;
    if (value === undefined || isValid(value)) return value;
    throw mustBe(name, what, value);
  };

const mustBe = (name: string, what: string, value: unknown) =>
  badParameter(name, `${name} must be ${what}; it is ${JSON.stringify(value)?.slice(0, 200)}`);

const isString = (value: unknown) => typeof value === "string";
const isInteger = (value: unknown): value is number => Number.isInteger(value);

export const readBoolean = reader("true or false", (value) => typeof value === "boolean");
export const readString = reader("a string", isString);
export const readObject = reader("an object", isObject);
export const readList = reader("a list", (value): value is unknown[] => Array.isArray(value));
const readIntegers = reader(
  "a list of integers",
  (value): value is number[] => Array.isArray(value) && value.every(isInteger),
);
const readTexts = reader(
  "a string or a list of strings",
  (value): value is string | string[] => isString(value) || (Array.isArray(value) && value.every(isString)),
);

/** One string or several. */
export function readStrings(body: Body, name: string): string[] | undefined {
  const value = readTexts(body, name);
  return typeof value === "string" ? [value] : value;
}

interface Range {
  min?: number;
  max?: number;
  integer?: boolean;
}

export function readNumber(body: Body, name: string, { min, max, integer = false }: Range = {}): number | undefined {
  const value = body[name] ?? undefined;
  if (value === undefined) return undefined;
  const isInRange = typeof value === "number" && value >= (min ?? -Infinity) && value <= (max ?? Infinity);
  if (isInRange && (!integer || isInteger(value))) return value;
  const range = `${min === undefined ? "" : ` >= ${min}`}${max === undefined ? "" : ` <= ${max}`}`;
  throw mustBe(name, `${integer ? "an integer" : "a number"}${range}`, value);
}

const longestName = 512;

/** The model's name, which is stored with every call. "" if missing. */
export function readModel(body: Body): string {
  const model = readString(body, "model") ?? "";
  if (model.length <= longestName) return model;
  throw badParameter("model", `model is longer than ${longestName} characters`);
}

// The sampling parameters of all APIs and of the extensions by inference servers.

const noEngine = "Hone's engines cannot sample so, and the recorded log-probabilities would not be the policy's";

export const storedAsConfigured: Rule = { ignored: "the gateway's configuration decides which calls are stored" };

/** The rules of OpenAI's two completion APIs. */
export const commonRules: Readonly<Record<string, Rule>> = {
  ...used("model stream stream_options n stop seed max_tokens temperature top_p top_k min_p logprobs stop_token_ids"),
  ...used("ignore_eos return_token_ids metadata"),
  frequency_penalty: { refused: noEngine, unless: [0] },
  presence_penalty: { refused: noEngine, unless: [0] },
  repetition_penalty: { refused: noEngine, unless: [1] },
  length_penalty: { refused: noEngine, unless: [1] },
  logit_bias: { refused: noEngine, unless: [{}] },
  min_tokens: { refused: noEngine, unless: [0] },
  skip_special_tokens: { refused: "special tokens are never part of the text", unless: [true] },
  user: { ignored: noEffect },
  store: storedAsConfigured,
  service_tier: { ignored: noEffect },
  safety_identifier: { ignored: noEffect },
  prompt_cache_key: { ignored: noEffect },
  prompt_cache_retention: { ignored: noEffect },
};

/** Each is searched for at each token. */
const maxStops = 100;

export const readMaxTokens = (body: Body, name: string) => readNumber(body, name, { min: 1, integer: true });

/** @param stop the parameter with the stop strings */
export function readSampling(
  body: Body,
  maxTokens: number | undefined,
  { maxTemperature = 100, stop = "stop" } = {},
): GenerateParams {
  const temperature = readNumber(body, "temperature", { min: 0, max: maxTemperature });
  if (temperature !== undefined && !isTemperature(temperature)) {
    throw badParameter(
      "temperature",
      `temperature must be 0 (greedy) or at least ${leastTemperature}; it is ${temperature}`,
    );
  }
  const topK = readNumber(body, "top_k", { min: -1, integer: true });
  const seed = readNumber(body, "seed", { integer: true });
  const stops = readStrings(body, stop);
  if (stops !== undefined && stops.length > maxStops) {
    throw badParameter(stop, `${stop} has ${stops.length} strings; at most ${maxStops} are supported`);
  }
  const params: { [Name in keyof GenerateParams]: GenerateParams[Name] | undefined } = {
    maxTokens,
    temperature,
    topP: readNumber(body, "top_p", { min: 0, max: 1 }),
    // Servers write "off" as 0 or as -1.
    topK: topK === 0 ? -1 : topK,
    minP: readNumber(body, "min_p", { min: 0, max: 1 }),
    // Engines take 32 bits.
    seed: seed === undefined ? undefined : seed >>> 0,
    stop: stops,
    stopIds: readIntegers(body, "stop_token_ids"),
    ignoreEos: readBoolean(body, "ignore_eos"),
  };
  return Object.fromEntries(Object.entries(params).filter(([, value]) => value !== undefined));
}

// Guarantees that an API offers and that no engine can give: a constrained sampler's log-probabilities are not the
// policy's, so Hone samples freely.

/** Refuses the guarantee, or, if the gateway is configured so, counts that it is not enforced. */
function demand({ unenforceable, notices }: CallContext, parameter: string, what: string): void {
  if (unenforceable === "refuse") {
    throw badParameter(
      parameter,
      `${what} cannot be guaranteed, because replies are sampled freely for training. Remove it, or set ` +
        "rllm.gateway.unenforceable=allow to get what is sampled",
    );
  }
  notices.add(`unenforced/${parameter}`, `${what} is not enforced: the reply is what was sampled`);
}

// Replies that should be JSON. They are sampled freely, then checked, and the results are metrics.

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

// Reads the contents of messages: text, or text and images. Images are data URLs or addresses, never files of this machine.

/** Text, or a list of parts that are all text. */
export function textOf(content: unknown, at: string): string {
  const read = readContent(content, at, () => undefined);
  return typeof read === "string" ? read : "";
}

/** Text and images of OpenAI's APIs: `image_url` (chat) and `input_image` (responses). */
export const openaiContent = (content: unknown, at: string, notices: Notices): Content =>
  readContent(content, at, (part, where) => openaiImage(part, where, notices));

/** Text and images of Anthropic's API. */
export const anthropicContent = (content: unknown, at: string): Content => readContent(content, at, anthropicImage);

/**
 * The result of a tool. The AI SDK's client for compatible servers sends a result with images as JSON, whose base64 a model would
 * read as thousands of tokens.
 */
export function toolContent(content: unknown, at: string, notices: Notices): Content {
  const parts = typeof content === "string" ? aiSdkParts(content) : undefined;
  if (parts === undefined) return openaiContent(content, at, notices);
  notices.add(
    "images_in_json",
    "a tool's result in the AI SDK's form, as JSON with images, is read as its text and images",
  );
  return normalizeContent(parts);
}

/** Undefined for any other text. */
function aiSdkParts(content: string): (TextPart | ImagePart)[] | undefined {
  if (!/^\[\s*\{/.test(content) || !/"(image-data|file-data|media|image-url)"/.test(content)) return undefined;
  let list: unknown;
  try {
    list = JSON.parse(content);
  } catch {
    return undefined;
  }
  const parts = (list as unknown[]).map((part) => (isObject(part) ? aiSdkPart(part) : undefined));
  const known = parts.filter((part) => part !== undefined);
  return known.length === parts.length && known.some(({ type }) => type === "image") ? known : undefined;
}

function aiSdkPart({ type, text, data, mediaType, url }: Body): TextPart | ImagePart | undefined {
  if (type === "text" && typeof text === "string") return { type: "text", text };
  if (type === "image-url" && typeof url === "string") return { type: "image", image: { address: url } };
  const isData = type === "image-data" || type === "file-data" || type === "media";
  if (!isData || typeof data !== "string" || typeof mediaType !== "string") return undefined;
  return mediaType.startsWith("image/")
    ? { type: "image", image: { address: `data:${mediaType};base64,${data}` } }
    : undefined;
}

type ReadImage = (part: Body, where: string) => ImagePart | undefined;

function readContent(content: unknown, at: string, readImage: ReadImage): Content {
  if (typeof content === "string") return content;
  if (content === null || content === undefined) return "";
  if (!Array.isArray(content)) throw badParameter(at, `${at} must be a string or a list of parts`);
  const parts = content.map((part: unknown, index): TextPart | ImagePart => {
    const where = `${at}[${index}]`;
    if (isObject(part) && typeof part.text === "string") return { type: "text", text: part.text };
    // An earlier answer that its client shows as a refusal is text like any other.
    if (isObject(part) && part.type === "refusal" && typeof part.refusal === "string") {
      return { type: "text", text: part.refusal };
    }
    const image = isObject(part) ? readImage(part, where) : undefined;
    if (image !== undefined) return image;
    const type = isObject(part) ? String(part.type) : typeof part;
    throw badParameter(
      where,
      `${where} is of type ${type}; only text and images of user and tool messages are supported`,
    );
  });
  return normalizeContent(parts);
}

function openaiImage(part: Body, where: string, notices: Notices): ImagePart | undefined {
  if (part.type !== "image_url" && part.type !== "input_image") return undefined;
  if (part.file_id !== undefined && part.file_id !== null) {
    throw badParameter(where, `${where}.file_id: the gateway has no files; send a data URL or an address`);
  }
  const given = isObject(part.image_url) ? part.image_url : { url: part.image_url, detail: part.detail };
  if (given.detail !== undefined && given.detail !== "auto") {
    notices.add(
      "ignored_parameter/detail",
      "detail is ignored: an image has the size that the model's processor gives it",
    );
  }
  return imagePart(given.url, where, "image_url");
}

export function anthropicImage({ type, source }: Body, where: string): ImagePart | undefined {
  if (type !== "image") return undefined;
  const { type: kind, media_type: mediaType, data, url } = isObject(source) ? source : {};
  if (kind === "url") return imagePart(url, where, "source.url");
  if (kind === "base64" && typeof mediaType === "string" && typeof data === "string") {
    return { type: "image", image: { address: `data:${mediaType};base64,${data}` } };
  }
  throw badParameter(where, `${where}.source must be base64 with media_type and data, or a url`);
}

function imagePart(url: unknown, where: string, name: string): ImagePart {
  if (typeof url === "string" && /^(data:|https?:)/i.test(url)) return { type: "image", image: { address: url } };
  throw badParameter(where, `${where}.${name} must be a data URL or an http(s) address`);
}

/** Joins the parts of a message, with line breaks between adjacent texts. */
export function joinLines(parts: readonly (TextPart | ImagePart)[]): Content {
  const lines = parts.map((part, index): TextPart | ImagePart => {
    const follows = part.type === "text" && parts[index - 1]?.type === "text";
    return follows ? { type: "text", text: `\n${part.text}` } : part;
  });
  return normalizeContent(lines);
}

// Tools, the choice of a tool, and tool calls, in the forms of the APIs.

/** How an API writes its tools. */
export interface ToolForm {
  /** Undefined: the value is not a choice. */
  choice: (value: unknown) => "auto" | "none" | "required" | { name: unknown } | undefined;
  /** The choices, for an error message. */
  choices: string;
  /** Name, description, parameters and strict of a tool; undefined if it is not a function of the client. */
  definition: (tool: Body) => Body | undefined;
  /** Whether the service of the API would run a tool of this type. */
  isHosted: (type: unknown) => boolean;
}

/**
 * Tools that the API's own service would run are left out beside the client's functions, because agents offer them unasked,
 * and are refused where they are all that a client offers.
 * @returns the tools that the model may call; none if the client chose so
 */
export function readTools(body: Body, context: CallContext, form: ToolForm): ToolDefinition[] {
  const choice = form.choice(body.tool_choice ?? undefined);
  if (choice === undefined) throw badParameter("tool_choice", `tool_choice must be ${form.choices}`);
  if (choice === "none") return [];
  if (choice === "required") demand(context, "tool_choice", "that a tool is called");
  if (typeof choice === "object") demand(context, "tool_choice", `that the tool ${choice.name} is called`);
  const offered = readList(body, "tools") ?? [];
  const isFunction = (tool: unknown) => isObject(tool) && form.definition(tool) !== undefined;
  const hasFunctions = offered.some(isFunction);
  const tools = offered.flatMap((tool, index) => {
    const at = `tools[${index}]`;
    const given = isObject(tool) ? form.definition(tool) : undefined;
    if (given !== undefined) return toolDefinition(given, at, context);
    if (hasFunctions && isObject(tool) && form.isHosted(tool.type)) {
      const reason = `tools of type ${tool.type} are left out: only functions of the client can be called`;
      context.notices.add(`ignored_parameter/tools.${tool.type}`, reason);
      return [];
    }
    throw badParameter(at, `${at} must be a function of the client; a model in training has no other tools`);
  });
  if (tools.length > 0 && readBoolean(body, "parallel_tool_calls") === false) {
    context.notices.add("ignored_parameter/parallel_tool_calls", "parallel_tool_calls=false is not enforced");
  }
  return tools;
}

function toolDefinition(given: Body, at: string, { notices }: CallContext): ToolDefinition {
  const { name, description, parameters, strict } = given;
  if (typeof name !== "string" || name === "") throw badParameter(`${at}.name`, `${at}.name is missing`);
  if (strict === true) {
    notices.add("ignored_parameter/tools.strict", "strict tools are ignored: arguments are what the model samples");
  }
  const tool: ToolDefinition = { name };
  if (typeof description === "string") tool.description = description;
  if (isObject(parameters)) tool.parameters = parameters;
  return tool;
}

/** @param given the arguments as JSON text */
export function toolCall(id: string, name: string, given: unknown, at: string): ToolCall {
  const text = typeof given === "string" && given.trim() !== "" ? given : "{}";
  let value: unknown;
  try {
    value = parseJson(text);
  } catch {
    value = undefined;
  }
  if (!isObject(value)) throw badParameter(at, `${at} must be a JSON object; it is ${text.slice(0, 200)}`);
  return { id, name, arguments: value, argumentsText: text };
}

/** The arguments as the model wrote them. */
export const argumentsText = (call: ToolCall) => call.argumentsText ?? JSON.stringify(call.arguments);

export const toOpenaiToolCalls = (calls: readonly ToolCall[]) =>
  calls.map((call) => ({
    id: call.id,
    type: "function" as const,
    function: { name: call.name, arguments: argumentsText(call) },
  }));
