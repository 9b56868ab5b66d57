/** Reads the formats of rows: OpenAI's and TRL's, ShareGPT's, Alpaca's, text and token ids. */
import { UserError } from "../base/errors.ts";
import { parseJson, writtenJson } from "../base/json.ts";
import { isObject, ownValue } from "../base/values.ts";
import type { ChatMessage, Content, ImagePart, TextPart, ToolCall, ToolDefinition } from "../chat/messages.ts";
import { isStruct } from "../data/files.ts";
import type { ImageSource } from "../images/images.ts";
import { continues } from "../trajectories/batch.ts";
import type { Step } from "../trajectories/types.ts";

/** What a row teaches. */
export type Example =
  | { kind: "chat"; messages: readonly RowMessage[]; tools: readonly ToolDefinition[] }
  /** `prompt` is context. */
  | { kind: "text"; prompt: string; text: string }
  | { kind: "tokens"; tokens: Int32Array; trained: Uint8Array };

export interface RowMessage extends ChatMessage {
  /** OpenAI's: 0 leaves the assistant's message out. */
  weight?: number;
  /** The Tinker cookbook's, for `sft.train_on=customized`. */
  trainable?: boolean;
}

type Row = Readonly<Record<string, unknown>>;

/**
 * @param at the row's origin, for messages
 * @throws UserError for a row of no known format
 */
export function readRow(row: unknown, at: string): Example {
  if (Array.isArray(row)) return chat(readMessages(row, at), []);
  if (!isObject(row)) throw new UserError(`${at}: the row is not an object with columns`);
  refuseOthers(
    row,
    { functions: "tools", tool_defs: "tools", completion_mask: "labels", assistant_masks: "labels" },
    `${at}: `,
  );
  const has = (name: string) => row[name] !== undefined && row[name] !== null;
  if (has("messages"))
    return chat(readMessages(row.messages, `${at}: messages`, imagesOf(row, at)), readTools(row, at));
  if (has("conversations")) return chat(readShareGpt(row, at), readTools(row, at));
  if (has("prompt") && has("completion")) return readPrompted(row, at);
  if (has("instruction")) return chat(readAlpaca(row, at), readTools(row, at));
  if (has("text")) {
    requireNoImages(row, at);
    if (row.text === "") throw new UserError(`${at}: text is empty`);
    return { kind: "text", prompt: "", text: textOf(row.text, `${at}: text`) };
  }
  if (has("input_ids")) return readTokens(row, at);
  throw new UserError(
    `${at}: a row needs messages, conversations, prompt and completion, instruction, text or input_ids; it has ${Object.keys(row).join(", ") || "no columns"}`,
    {
      hint: "docs/guide/fine-tuning.md lists the formats",
    },
  );
}

/** Other systems' columns and keys that say what is learned, and Hone's. If they were ignored, something else would be learned. */
function refuseOthers(given: Row, others: Readonly<Record<string, string>>, at: string): void {
  for (const [name, instead] of Object.entries(others)) {
    if (given[name] != null) throw new UserError(`${at}${name} is not supported`, { hint: `write ${instead}` });
  }
}

/** Text contains no place for an image. */
export function requireNoImages(row: Row, at: string): void {
  if (imagesOf(row, at).length > 0) throw new UserError(`${at}: images need messages with parts of type image`);
}

function chat(messages: readonly RowMessage[], tools: readonly ToolDefinition[]): Example {
  return { kind: "chat", ...withoutPadding({ messages, tools }) };
}

function readPrompted(row: Row, at: string): Example {
  const { prompt, completion } = row;
  if (typeof prompt === "string" && typeof completion === "string") {
    requireNoImages(row, at);
    if (prompt === "" && completion === "") throw new UserError(`${at}: prompt and completion are empty`);
    return { kind: "text", prompt, text: completion };
  }
  const context = readMessages(asMessages(prompt, "user"), `${at}: prompt`, imagesOf(row, at)).map((message) =>
    message.role === "assistant" ? { ...message, weight: 0 } : message,
  );
  const reply = readMessages(asMessages(completion, "assistant"), `${at}: completion`);
  return chat([...context, ...reply], readTools(row, at));
}

export const asMessages = (value: unknown, role: string): unknown =>
  typeof value === "string" ? [{ role, content: value }] : isObject(value) ? [value] : value;

function readTokens(row: Row, at: string): Example {
  const ids = integers(row.input_ids, `${at}: input_ids`);
  const labels = row.labels == null ? ids : integers(row.labels, `${at}: labels`);
  if (labels.length !== ids.length) {
    throw new UserError(`${at}: labels has ${labels.length} entries, input_ids ${ids.length}`);
  }
  const wrong = ids.findIndex((id, index) => id < 0 || (labels[index] !== ignored && labels[index] !== id));
  if (wrong >= 0) {
    throw new UserError(
      `${at}: input_ids[${wrong}] is ${ids[wrong]} and labels[${wrong}] ${labels[wrong]}; a label is its token or ${ignored}`,
    );
  }
  // The first token is not predicted.
  const trained = Uint8Array.from(labels.slice(1), (label) => (label === ignored ? 0 : 1));
  return { kind: "tokens", tokens: Int32Array.from(ids), trained };
}

/** The label of tokens that are not trained. */
const ignored = -100;

function integers(value: unknown, at: string): number[] {
  const list = ArrayBuffer.isView(value) ? Array.from(value as unknown as ArrayLike<number>) : value;
  const isInteger = (one: unknown) => Number.isInteger(one) && Math.abs(one as number) < 2 ** 31;
  if (Array.isArray(list) && list.length > 1 && list.every(isInteger)) return list;
  throw new UserError(`${at} must be a list of two or more integers`);
}

const shareGptRoles: Readonly<Record<string, ChatMessage["role"]>> = {
  system: "system",
  human: "user",
  user: "user",
  gpt: "assistant",
  assistant: "assistant",
  function_call: "assistant",
  observation: "tool",
  tool: "tool",
};

function readShareGpt(row: Row, at: string): RowMessage[] {
  const turns = listOf(row.conversations, `${at}: conversations`).map((turn, index) => {
    const where = `${at}: conversations[${index}]`;
    if (!isObject(turn)) throw new UserError(`${where} is not an object`);
    // Some data sets write OpenAI's keys here.
    const { from = turn.role, value = turn.content, ...others } = turn;
    const role = ownValue(shareGptRoles, String(from));
    if (role === undefined) {
      throw new UserError(
        `${where}.from is ${JSON.stringify(from)}; it must be ${Object.keys(shareGptRoles).join(", ")}`,
      );
    }
    if (value == null && turn.tool_calls == null) throw new UserError(`${where}.value is missing`);
    if (from !== "function_call") return { ...others, role, content: value };
    const calls = [readJson(value, `${where}.value`)].flat();
    return { ...others, role, content: "", tool_calls: calls.map((call) => ({ function: call })) };
  });
  return [...readSystem(row, at), ...readMessages(turns, `${at}: conversations`, imagesOf(row, at))];
}

const readSystem = ({ system }: Row, at: string): RowMessage[] =>
  system == null || system === "" ? [] : [{ role: "system", content: textOf(system, `${at}: system`) }];

/** A message of history is a pair of instruction and reply. */
function readAlpaca(row: Row, at: string): RowMessage[] {
  const { instruction, input, output } = row;
  const query = [instruction, input]
    .filter((part) => part != null && part !== "")
    .map((part) => textOf(part, `${at}: instruction and input`));
  const history = row.history == null ? [] : listOf(row.history, `${at}: history`);
  const turns = history.flatMap((turn, index) => {
    const where = `${at}: history[${index}]`;
    const pair = listOf(turn, where);
    if (pair.length !== 2) throw new UserError(`${where} must be an instruction and its reply`);
    return pair.map((text, place) => ({ role: place === 0 ? "user" : "assistant", content: textOf(text, where) }));
  });
  const messages = [
    ...turns,
    { role: "user", content: query.join("\n") },
    { role: "assistant", content: textOf(output, `${at}: output`) },
  ];
  return [...readSystem(row, at), ...readMessages(messages, at, imagesOf(row, at))];
}

const roles = ["system", "user", "assistant", "tool"] as const;

/**
 * @param images of placeholders (`{type: "image"}`), in order
 * @throws UserError naming the message
 */
export function readMessages(value: unknown, at: string, images: readonly unknown[] = []): RowMessage[] {
  const list = listOf(value, at);
  if (list.length === 0) throw new UserError(`${at} is empty`);
  const pending = [...images];
  const messages = list.map((message, index) => readMessage(message, `${at}[${index}]`, pending));
  if (pending.length > 0) {
    throw new UserError(
      `${at}: ${images.length} images, but only ${images.length - pending.length} parts of type image`,
    );
  }
  return messages;
}

function readMessage(given: unknown, at: string, images: unknown[]): RowMessage {
  if (!isObject(given)) throw new UserError(`${at} is not a message`);
  refuseOthers(given, { function_call: "tool_calls" }, `${at}.`);
  // Later names of the same roles.
  const named = given.role === "developer" ? "system" : given.role === "function" ? "tool" : given.role;
  const role = roles.find((one) => one === named);
  if (role === undefined)
    throw new UserError(`${at}.role is ${JSON.stringify(given.role)}; it must be ${roles.join(", ")}`);
  const calls = given.tool_calls == null ? [] : listOf(given.tool_calls, `${at}.tool_calls`);
  if (calls.length > 0 && role !== "assistant")
    throw new UserError(`${at}.tool_calls: only an assistant's message has tool calls`);
  if (given.content == null && calls.length === 0) throw new UserError(`${at}.content is missing`);
  const message: RowMessage = { role, content: readContent(given.content ?? "", `${at}.content`, images) };
  const reasoning = given.reasoning_content ?? given.reasoning ?? given.thinking;
  if (reasoning != null && reasoning !== "") message.reasoning = textOf(reasoning, `${at}.reasoning_content`);
  if (calls.length > 0)
    message.toolCalls = calls.map((call, index) => readToolCall(call, `${at}.tool_calls[${index}]`, index));
  if (given.tool_call_id != null) message.toolCallId = textOf(given.tool_call_id, `${at}.tool_call_id`);
  if (given.name != null) message.name = textOf(given.name, `${at}.name`);
  if (given.weight != null) message.weight = readWeight(given.weight, role, at);
  if (given.trainable != null) {
    if (typeof given.trainable !== "boolean") throw new UserError(`${at}.trainable must be true or false`);
    message.trainable = given.trainable;
  }
  return message;
}

function readWeight(weight: unknown, role: string, at: string): number {
  if (weight !== 0 && weight !== 1) throw new UserError(`${at}.weight is ${JSON.stringify(weight)}; it must be 0 or 1`);
  if (role !== "assistant") throw new UserError(`${at}.weight: only an assistant's message has a weight`);
  return weight;
}

function readContent(content: unknown, at: string, images: unknown[]): Content {
  if (typeof content === "string") return textOf(content, at);
  if (!Array.isArray(content)) throw new UserError(`${at} must be text or a list of parts`);
  const parts = content.map((part, index): TextPart | ImagePart => {
    const where = `${at}[${index}]`;
    if (typeof part === "string") return { type: "text", text: textOf(part, where) };
    if (!isObject(part)) throw new UserError(`${where} is not a part of a message`);
    if (part.type === "text") return { type: "text", text: textOf(part.text, `${where}.text`) };
    if (part.type === "image" || part.type === "image_url")
      return { type: "image", image: imageOf(part, where, images) };
    throw new UserError(`${where}.type is ${JSON.stringify(part.type)}; only text and images are supported`);
  });
  return parts.every((part) => part.type === "text") ? parts.map(({ text }) => text).join("") : parts;
}

function imageOf(part: Row, at: string, images: unknown[]): ImageSource {
  const url = isObject(part.image_url) ? part.image_url.url : part.image_url;
  const own = part.image ?? part.url ?? part.path ?? url ?? images.shift();
  if (typeof own === "string" || own instanceof Uint8Array || isObject(own)) return own as ImageSource;
  throw new UserError(`${at} has no image`, {
    hint: "a path, an address, a data URL, bytes, or an entry of the column images",
  });
}

export const imagesOf = ({ images, image }: Row, at: string): readonly unknown[] =>
  images != null ? listOf(images, `${at}: images`) : image == null ? [] : [image];

function readToolCall(given: unknown, at: string, index: number): ToolCall {
  if (!isObject(given)) throw new UserError(`${at} is not a call`);
  const called = isObject(given.function) ? given.function : given;
  const name = textOf(called.name, `${at}.function.name`);
  const value = called.arguments ?? {};
  const parsed = typeof value === "string" ? readJson(value === "" ? "{}" : value, `${at}.function.arguments`) : value;
  if (!isObject(parsed)) throw new UserError(`${at}.function.arguments must be a JSON object`);
  const call: ToolCall = { id: typeof given.id === "string" ? given.id : `call_${index}`, name, arguments: parsed };
  const argumentsText = typeof value === "string" && value !== "" ? value : writtenJson(parsed);
  return argumentsText === undefined ? call : { ...call, argumentsText };
}

/**
 * A table of Arrow's has all keys of all rows in each row, as nulls. Those that a call or a schema cannot mean are left out: in
 * struct columns all, in JSON that was written from such a table what the tool's schema does not know, or what is no schema.
 */
function withoutPadding({ messages, tools }: { messages: readonly RowMessage[]; tools: readonly ToolDefinition[] }) {
  const unpadded = tools.map((tool) =>
    tool.parameters === undefined ? tool : { ...tool, parameters: schemaWithoutNulls(tool.parameters) as Row },
  );
  const isUnknown = (name: string, key: string) => {
    const properties = unpadded.find((tool) => tool.name === name)?.parameters?.properties;
    return isObject(properties) && !Object.hasOwn(properties, key);
  };
  const called = messages.map((message) => {
    if (message.toolCalls === undefined) return message;
    return { ...message, toolCalls: message.toolCalls.map((call) => callWithoutNulls(call, isUnknown)) };
  });
  return { messages: called, tools: unpadded };
}

/** Keywords whose null has a meaning. */
const nullable = new Set(["default", "const", "example"]);

function schemaWithoutNulls(schema: unknown): unknown {
  if (Array.isArray(schema)) return schema.map(schemaWithoutNulls);
  if (!isObject(schema)) return schema;
  const isPadded = isStruct(schema);
  const kept = Object.entries(schema).filter(([key, value]) => value !== null || (!isPadded && nullable.has(key)));
  if (!isPadded && kept.every(([, value]) => typeof value !== "object")) {
    return kept.length === Object.keys(schema).length ? schema : Object.fromEntries(kept);
  }
  return Object.fromEntries(kept.map(([key, value]) => [key, schemaWithoutNulls(value)]));
}

function callWithoutNulls(call: ToolCall, isUnknown: (name: string, key: string) => boolean): ToolCall {
  const drops = (key: string, value: unknown) =>
    value === null && (isStruct(call.arguments) || isUnknown(call.name, key));
  const given = Object.entries(call.arguments);
  if (!given.some(([key, value]) => drops(key, value) || (isObject(value) && isStruct(value)))) return call;
  const { argumentsText: _, ...rest } = call;
  const kept = given.filter(([key, value]) => !drops(key, value));
  return { ...rest, arguments: Object.fromEntries(kept.map(([key, value]) => [key, structWithoutNulls(value)])) };
}

function structWithoutNulls(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(structWithoutNulls);
  if (!isObject(value) || !isStruct(value)) return value;
  const kept = Object.entries(value).filter(([, member]) => member !== null);
  return Object.fromEntries(kept.map(([key, member]) => [key, structWithoutNulls(member)]));
}

/** A list, or its JSON, as some tables store it. */
export function readTools(row: Row, at: string): ToolDefinition[] {
  if (row.tools == null || row.tools === "") return [];
  const list = listOf(typeof row.tools === "string" ? readJson(row.tools, `${at}: tools`) : row.tools, `${at}: tools`);
  return list.map((tool, index) => {
    const where = `${at}: tools[${index}]`;
    const given = isObject(tool) && isObject(tool.function) ? tool.function : tool;
    if (!isObject(given)) throw new UserError(`${where} is not a function`);
    const definition: ToolDefinition = { name: textOf(given.name, `${where}.name`) };
    if (given.description != null) definition.description = textOf(given.description, `${where}.description`);
    if (given.parameters != null) {
      if (!isObject(given.parameters)) throw new UserError(`${where}.parameters must be a JSON schema`);
      definition.parameters = given.parameters;
    }
    return definition;
  });
}

function listOf(value: unknown, at: string): readonly unknown[] {
  if (Array.isArray(value)) return value;
  throw new UserError(`${at} must be a list`);
}

function textOf(value: unknown, at: string): string {
  if (typeof value !== "string") throw new UserError(`${at} must be text`);
  // A tokenizer would replace it by another character.
  if (/\p{Surrogate}/u.test(value)) throw new UserError(`${at} has half of a surrogate pair, which is not a character`);
  return value;
}

function readJson(text: unknown, at: string): unknown {
  try {
    return parseJson(textOf(text, at));
  } catch (error) {
    if (error instanceof UserError) throw error;
    throw new UserError(`${at} is not JSON: ${(error as Error).message}`);
  }
}

// What happens to rows that are longer than the limit.

export interface LengthLimit {
  /** In tokens. */
  most: number;
  /** `right` cuts off the end, `left` the beginning. */
  truncation: "error" | "right" | "left" | "drop";
}

/** `steps` is empty if nothing is left to train on. */
export interface Limited {
  steps: Step[];
  change: "none" | "cut" | "dropped";
}

const lengthOf = ({ promptTokens, tokens }: Step) => promptTokens.length + tokens.length;

/** @throws UserError without the row's origin, if it is longer and `truncation` is "error" */
export function limitLength(steps: Step[], { most, truncation }: LengthLimit): Limited {
  const longest = Math.max(0, ...steps.map(lengthOf));
  if (longest <= most) return { steps, change: "none" };
  if (truncation === "error") {
    throw new UserError(`it has ${longest} tokens, but the limit is ${most}`, {
      hint: "raise data.max_length or training.max_length, or set data.truncation to right, left or drop",
    });
  }
  // Half an image means nothing.
  const hasImages = steps.some(({ media = [] }) => media.length > 0);
  if (truncation === "drop" || hasImages) return { steps: [], change: "dropped" };
  const cut = truncation === "right" ? steps.flatMap((step) => cutEnd(step, most)) : cutBeginnings(steps, most);
  return { steps: cut, change: cut.length === 0 ? "dropped" : "cut" };
}

function cutEnd(step: Step, most: number): Step[] {
  const room = most - step.promptTokens.length;
  return room < 1 ? [] : [keepTokens(step, 0, Math.min(room, step.tokens.length))];
}

/** The steps of one sequence lose the same tokens. */
function cutBeginnings(steps: readonly Step[], most: number): Step[] {
  const kept: Step[] = [];
  for (let from = 0; from < steps.length; ) {
    let end = from + 1;
    while (end < steps.length && continues(steps[end]!, steps[end - 1]!)) end++;
    const excess = Math.max(0, lengthOf(steps[end - 1]!) - most);
    for (const step of steps.slice(from, end)) kept.push(...cutBeginning(step, excess));
    from = end;
  }
  return kept;
}

function cutBeginning(step: Step, excess: number): Step[] {
  const { promptTokens, tokens } = step;
  if (excess < promptTokens.length) return [{ ...step, promptTokens: promptTokens.subarray(excess) }];
  // The first token that is left is not predicted.
  const first = excess - promptTokens.length;
  if (first + 1 >= tokens.length) return [];
  return [{ ...keepTokens(step, first + 1, tokens.length), promptTokens: tokens.subarray(first, first + 1) }];
}

const keepTokens = (step: Step, from: number, end: number): Step => ({
  ...step,
  tokens: step.tokens.subarray(from, end),
  logprobs: step.logprobs.subarray(from, end),
});
