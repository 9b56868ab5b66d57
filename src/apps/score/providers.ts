/**
 * Hosted models behind OpenAI's and Anthropic's APIs, as functions from a conversation to a reply, and as a chat that workflows can
 * sample.
 */
import { RunError, UserError } from "../../base/errors.ts";
import { answerText, type PostOptions, postJson, reasonOf } from "../../base/http.ts";
import { assembleChat } from "../../chat/chat.ts";
import { type ChatMessage, type TextMessage, type ToolCall, type ToolDefinition, textOf } from "../../chat/messages.ts";
import { type CallFormat, thinkTags } from "../../chat/reply-format.ts";
import { hermes } from "../../chat/reply-formats.ts";
import type { Chat, RenderOptions } from "../../chat/types.ts";

interface ProviderCall {
  messages: readonly TextMessage[];
  tools: readonly ToolDefinition[];
  /** What the caller asked for; absent: the provider's default. */
  maxTokens?: number;
  temperature?: number;
  topP?: number;
  stop: readonly string[];
  signal: AbortSignal;
}

interface ProviderReply {
  message: TextMessage;
  cutOff: boolean;
  /** As the provider counts tokens. */
  usage: { input: number; output: number };
  retries: number;
}

export interface Provider {
  /** `openai:gpt-5-mini`, without keys. */
  name: string;
  ask(call: ProviderCall): Promise<ProviderReply>;
}

export interface ProviderOptions {
  /** The environment variable with the key. Default: that of the provider; none for a URL. */
  keyVariable?: string | undefined;
  environment?: Readonly<Record<string, string | undefined>>;
  retries?: number;
  timeoutSeconds?: number;
}

/**
 * @param spec `openai:NAME`, `anthropic:NAME`, or the base URL of an OpenAI-compatible server (`http://host:port/v1#NAME`;
 * without a name, the only model that it lists)
 * @throws UserError for another form, and if the key is missing
 */
export async function openProvider(spec: string, options: ProviderOptions = {}): Promise<Provider> {
  const { environment = process.env, keyVariable } = options;
  const [, kind = "", model = ""] = /^(openai|anthropic):(.+)$/.exec(spec) ?? [];
  const read = (variable: string) => environment[variable] || undefined;
  const post = (url: string, body: unknown, headers: PostOptions["headers"], signal: AbortSignal) =>
    postJson(url, body, {
      ...{ headers, signal, pauseSeconds: 1 },
      ...{ retries: options.retries ?? 4, timeoutSeconds: options.timeoutSeconds ?? 300 },
    });
  if (kind !== "") {
    const variable = keyVariable ?? `${kind.toUpperCase()}_API_KEY`;
    const key = read(variable);
    if (key === undefined) {
      throw new UserError(`${spec} needs a key, but ${variable} is not set`, { hint: `export ${variable}=...` });
    }
    const base = read(`${kind.toUpperCase()}_BASE_URL`);
    if (kind === "openai") {
      const url = `${trim(base ?? "https://api.openai.com/v1")}/chat/completions`;
      return { name: spec, ask: (call) => askOpenai(post, url, model, key, "max_completion_tokens", call) };
    }
    const url = `${trim(base ?? "https://api.anthropic.com").replace(/\/v1$/, "")}/v1/messages`;
    return { name: spec, ask: (call) => askAnthropic(post, url, model, key, call) };
  }
  const address = URL.canParse(spec) ? new URL(spec) : undefined;
  if (address === undefined || !/^https?:$/.test(address.protocol)) {
    throw new UserError(`${spec} is not a model that hone score can ask`, {
      hint: "use openai:NAME, anthropic:NAME, or an address such as http://127.0.0.1:8000/v1#NAME",
    });
  }
  const key = keyVariable === undefined ? undefined : read(keyVariable);
  if (keyVariable !== undefined && key === undefined) throw new UserError(`${keyVariable} is not set`);
  const named = decodeURIComponent(address.hash.slice(1));
  address.hash = "";
  const base = trim(address.href);
  const name = named || (await onlyModel(base, key));
  return { name, ask: (call) => askOpenai(post, `${base}/chat/completions`, name, key, "max_tokens", call) };
}

const trim = (url: string) => url.replace(/\/+$/, "");

async function onlyModel(base: string, key: string | undefined): Promise<string> {
  const hint = `name the model in the address: ${base}#NAME`;
  let listed: unknown;
  try {
    const headers: Record<string, string> = key === undefined ? {} : { authorization: `Bearer ${key}` };
    const { body } = await fetch(`${base}/models`, { headers, signal: AbortSignal.timeout(30_000) });
    listed = JSON.parse(await answerText(body, `${base}/models`));
  } catch (cause) {
    throw new UserError(`${base}/models did not list the server's models: ${reasonOf(cause)}`, { hint, cause });
  }
  const models = (listed as { data?: { id?: unknown }[] } | null)?.data ?? [];
  const ids = Array.isArray(models) ? models.map((model) => String(model?.id)) : [];
  if (ids.length === 1) return ids[0]!;
  throw new UserError(
    `${base} has ${ids.length === 0 ? "no model" : `several models: ${ids.slice(0, 9).join(", ")}`}`,
    { hint },
  );
}

type Post = (
  url: string,
  body: unknown,
  headers: PostOptions["headers"],
  signal: AbortSignal,
) => Promise<{ value: unknown; retries: number }>;

/** JSON leaves out what is undefined. */
async function askOpenai(
  post: Post,
  url: string,
  model: string,
  key: string | undefined,
  limit: "max_tokens" | "max_completion_tokens",
  { messages, tools, maxTokens, temperature, topP, stop, signal }: ProviderCall,
): Promise<ProviderReply> {
  const body = {
    model,
    messages: messages.map(({ role, content, toolCalls, toolCallId }) => ({
      ...{ role, content, tool_call_id: toolCallId },
      tool_calls: toolCalls?.map((call) => ({
        ...{ id: call.id, type: "function" },
        function: { name: call.name, arguments: call.argumentsText ?? JSON.stringify(call.arguments) },
      })),
    })),
    tools: tools.length === 0 ? undefined : tools.map((tool) => ({ type: "function", function: tool })),
    ...{ temperature, top_p: topP, [limit]: maxTokens, stop: stop.length === 0 ? undefined : stop },
  };
  const { value, retries } = await post(url, body, key === undefined ? {} : { authorization: `Bearer ${key}` }, signal);
  const answer = value as {
    choices?: {
      finish_reason?: unknown;
      message?: { content?: unknown; reasoning_content?: unknown; tool_calls?: unknown };
    }[];
    usage?: { prompt_tokens?: unknown; completion_tokens?: unknown };
  } | null;
  const choice = answer?.choices?.[0];
  if (!choice?.message) throw unexpected(url, value);
  const { content, reasoning_content: reasoning, tool_calls: calls } = choice.message;
  // Mistral's reasoning models answer with parts.
  const text = Array.isArray(content) ? content.map((part) => String(part?.text ?? "")).join("") : (content ?? "");
  if (typeof text !== "string") throw unexpected(url, value);
  const message: TextMessage = { role: "assistant", content: text };
  if (typeof reasoning === "string") message.reasoning = reasoning;
  const read = Array.isArray(calls)
    ? calls.map((call) => toCall(call?.id, call?.function?.name, call?.function?.arguments))
    : [];
  if (read.length > 0) message.toolCalls = read;
  const usage = { input: count(answer?.usage?.prompt_tokens), output: count(answer?.usage?.completion_tokens) };
  return { message, usage, retries, cutOff: choice.finish_reason === "length" };
}

/** Anthropic requires a limit. */
const anthropicMaxTokens = 8192;

async function askAnthropic(
  post: Post,
  url: string,
  model: string,
  key: string,
  { messages, tools, maxTokens = anthropicMaxTokens, temperature, topP, stop, signal }: ProviderCall,
): Promise<ProviderReply> {
  const system = messages.filter(({ role }) => role === "system").map(({ content }) => content);
  const body = {
    model,
    max_tokens: maxTokens,
    system: system.length === 0 ? undefined : system.join("\n\n"),
    messages: toAnthropicMessages(messages),
    tools:
      tools.length === 0
        ? undefined
        : tools.map(({ name, description, parameters = { type: "object", properties: {} } }) => ({
            ...{ name, description, input_schema: parameters },
          })),
    ...{ temperature, top_p: topP, stop_sequences: stop.length === 0 ? undefined : stop },
  };
  const headers = { "x-api-key": key, "anthropic-version": "2023-06-01" };
  const { value, retries } = await post(url, body, headers, signal);
  const answer = value as {
    content?: { type?: unknown; text?: unknown; thinking?: unknown; id?: unknown; name?: unknown; input?: unknown }[];
    stop_reason?: unknown;
    usage?: { input_tokens?: unknown; output_tokens?: unknown };
  } | null;
  if (!Array.isArray(answer?.content)) throw unexpected(url, value);
  const of = (type: string) => answer.content!.filter((block) => block.type === type);
  const message: TextMessage = {
    role: "assistant",
    content: of("text")
      .map(({ text }) => (typeof text === "string" ? text : ""))
      .join(""),
  };
  const reasoning = of("thinking")
    .map(({ thinking }) => (typeof thinking === "string" ? thinking : ""))
    .join("\n");
  if (reasoning !== "") message.reasoning = reasoning;
  const calls = of("tool_use").map(({ id, name, input }) => toCall(id, name, input));
  if (calls.length > 0) message.toolCalls = calls;
  const usage = { input: count(answer.usage?.input_tokens), output: count(answer.usage?.output_tokens) };
  return { message, usage, retries, cutOff: answer.stop_reason === "max_tokens" };
}

/** Results of tools are blocks of a user's message, and neighbors of one role are one message. */
function toAnthropicMessages(messages: readonly TextMessage[]) {
  const merged: { role: "user" | "assistant"; content: object[] }[] = [];
  for (const { role, content, toolCalls = [], toolCallId } of messages) {
    if (role === "system") continue;
    const blocks: object[] =
      role === "tool"
        ? [{ type: "tool_result", tool_use_id: toolCallId, content }]
        : [
            ...(content === "" ? [] : [{ type: "text", text: content }]),
            ...toolCalls.map(({ id, name, arguments: input }) => ({ type: "tool_use", id, name, input })),
          ];
    const speaker = role === "assistant" ? "assistant" : "user";
    const last = merged.at(-1);
    if (last?.role === speaker) last.content.push(...blocks);
    else merged.push({ role: speaker, content: blocks });
  }
  return merged;
}

/** Arguments that are not a JSON object stay as the model wrote them: the agent sees a malformed call. */
function toCall(id: unknown, name: unknown, given: unknown): ToolCall {
  const text = typeof given === "string" ? given : JSON.stringify(given ?? {});
  return {
    id: typeof id === "string" ? id : "",
    name: typeof name === "string" ? name : "",
    arguments: {},
    argumentsText: text,
  };
}

const count = (value: unknown) => (typeof value === "number" && Number.isFinite(value) ? value : 0);

const unexpected = (url: string, value: unknown) =>
  new RunError(`${url} answered ${JSON.stringify(value)?.slice(0, 200)} instead of a reply`);

// A chat whose tokens are characters, so that a model behind an API of messages can be sampled like a model with tokens:
// a prompt holds its messages, and they can be read back from it.

const roles = ["system", "user", "assistant", "tool"] as const;
/** Ids 0 to 5: the end of a turn, the header of the tools, and those of the four roles. */
const specials = ["<|end|>", "<|tools|>", ...roles.map((role) => `<|${role}|>`)];
const pieces = new RegExp(`${specials.map((special) => special.replaceAll("|", "\\|")).join("|")}|.`, "gsu");
const names = specials.map((special) => special.slice(2, -2)).join("|");
/** Stands between the two characters that begin a mark in somebody's text, so that it is not one. */
const joiner = "\u2060";
const escapeMarks = (text: string) =>
  text.replace(new RegExp(`<(${joiner}*)(?=\\|(?:${names})\\|>)`, "g"), `<$1${joiner}`);
const unescapeMarks = (text: string) =>
  text.replace(new RegExp(`<(${joiner}*)${joiner}(?=\\|(?:${names})\\|>)`, "g"), "<$1");

const encode = (text: string) =>
  Int32Array.from(text.match(pieces) ?? [], (piece) => {
    const special = specials.indexOf(piece);
    return special >= 0 ? special : specials.length + (piece.codePointAt(0) ?? 0);
  });

const toPiece = (id: number) =>
  id < specials.length ? (specials[id] ?? "") : String.fromCodePoint(Math.min(id - specials.length, 0x10ffff));

/** A reply as the model of the chat writes it. Unlike in other formats, calls keep the ids of the provider. */
export function writeReply({ content, reasoning, toolCalls = [] }: Omit<TextMessage, "role">): string {
  const thinking = reasoning ? `<think>\n${reasoning}\n</think>\n\n` : "";
  const calls = toolCalls.map(({ id, name, arguments: given, argumentsText }) => {
    const text = argumentsText ?? JSON.stringify(given);
    return `<tool_call>${JSON.stringify({ id, name, arguments: text })}</tool_call>`;
  });
  return escapeMarks(thinking + [...(content === "" ? [] : [content]), ...calls].join("\n"));
}

/** Keeps the ids of the provider. */
const calls: CallFormat = {
  ...hermes,
  read(text, tools) {
    const found = hermes.read(text, tools);
    return {
      ...found,
      calls: found.calls.map((call) => ({ ...call, ...(call.writtenId ? { id: call.writtenId } : {}) })),
    };
  },
};

function renderText(
  messages: readonly ChatMessage[],
  { tools = [], addGenerationPrompt = true }: RenderOptions,
): string {
  const offered = tools.length > 0 ? `<|tools|>${escapeMarks(JSON.stringify(tools))}<|end|>` : "";
  const written = messages.map((message) => {
    if (message.role === "assistant")
      return `<|assistant|>${writeReply({ ...message, content: textOf(message.content) })}<|end|>`;
    const of = message.role === "tool" ? `${JSON.stringify(message.toolCallId ?? "")}\n` : "";
    return `<|${message.role}|>${escapeMarks(of + textOf(message.content))}<|end|>`;
  });
  return offered + written.join("") + (addGenerationPrompt ? "<|assistant|>" : "");
}

export interface ProviderChat extends Chat {
  readonly eosId: number;
  /** The conversation of a prompt. */
  read(prompt: ArrayLike<number>): { messages: TextMessage[]; tools: ToolDefinition[] };
}

export function providerChat(): ProviderChat {
  const decode: Chat["decode"] = (tokens, { skipSpecial = false } = {}) => {
    const kept = Array.from(tokens).filter((id) => !skipSpecial || id >= specials.length);
    return unescapeMarks(kept.map(toPiece).join(""));
  };
  const chat = assembleChat({
    encode,
    decode,
    renderText,
    specials,
    format: { thinking: thinkTags, calls },
    ids: { bos: null, eos: 0, pad: null },
  });
  return {
    ...chat,
    eosId: 0,
    read(prompt) {
      const messages: TextMessage[] = [];
      let tools: ToolDefinition[] = [];
      for (const [, kind, raw = ""] of Array.from(prompt, toPiece).join("").matchAll(turns)) {
        const text = unescapeMarks(raw);
        if (kind === "tools") tools = JSON.parse(text) as ToolDefinition[];
        else messages.push(toMessage(chat, kind as TextMessage["role"], text));
      }
      return { messages, tools };
    },
  };
}

const turns = /<\|(tools|system|user|assistant|tool)\|>(.*?)<\|end\|>/gs;

/** Calls are read also if the tools are no longer offered. */
const anyTool: readonly ToolDefinition[] = [{ name: "any" }];

function toMessage(chat: Chat, role: TextMessage["role"], text: string): TextMessage {
  if (role === "tool") {
    const end = text.indexOf("\n");
    return { role, content: text.slice(end + 1), toolCallId: JSON.parse(text.slice(0, end)) as string };
  }
  if (role !== "assistant") return { role, content: text };
  const { content, reasoning, toolCalls } = chat.parse(text, { tools: anyTool });
  const message: TextMessage & { toolCalls?: readonly ToolCall[] } = { role, content };
  if (reasoning) message.reasoning = reasoning;
  if (toolCalls.length > 0) message.toolCalls = toolCalls;
  return message;
}
