/** Models behind OpenAI's chat completions and Anthropic's messages, as functions from a conversation to a reply. */
import type { TextMessage, ToolCall, ToolDefinition } from "../chat/messages.ts";
import { RunError, UserError } from "../errors.ts";
import { answerText } from "../http/answer-text.ts";
import { type PostOptions, postJson } from "../http/post-json.ts";
import { reasonOf } from "../http/retries.ts";

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
