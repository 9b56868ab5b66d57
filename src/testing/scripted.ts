/** A model that answers from a script, for users' own tests of agents, workflows and rewards. */
import type { Workflow } from "../agents/types.ts";
import type { Sample, SampleOptions, SampleRequest, Sampler, SamplingParams } from "../backends/engine.ts";
import { ownDistribution } from "../backends/engine-parts.ts";
import { RunError, UserError } from "../base/errors.ts";
import { assembleChat } from "../chat/chat.ts";
import type { Vision } from "../chat/images.ts";
import type { ChatMessage, TextMessage } from "../chat/messages.ts";
import { thinkTags } from "../chat/reply-format.ts";
import { hermes } from "../chat/reply-formats.ts";
import { toTemplateTool } from "../chat/template.ts";
import type { Chat, RenderOptions } from "../chat/types.ts";
import type { Task } from "../data/dataset.ts";
import { openGateway } from "../gateway/gateway.ts";
import { rolloutGateway } from "../gateway/sessions.ts";
import { type Media, memoryStore } from "../images/images.ts";
import { imageLoader } from "../images/load-image.ts";
import { type OnAgentError, runRollouts } from "../rollout/rollouts.ts";
import { createSamplingClient, rolloutSeed } from "../rollout/session.ts";
import type { Episode } from "../trajectories/types.ts";

export interface RunWorkflowOptions<Row> {
  workflow: Workflow<Row>;
  rows: readonly Row[];
  /** The model's replies. */
  reply: Script;
  /** Rollouts per row. Default 1. */
  n?: number;
  purpose?: "train" | "validate";
  /** In characters, which are the scripted model's tokens. Both are unlimited by default. */
  maxPromptLength?: number;
  maxResponseLength?: number;
  /** Time limit of a rollout. Default 10. */
  timeoutSeconds?: number;
  /** Throw failures, with the row. Default true; false returns episodes with `failure`. */
  raiseOnError?: boolean;
  /** Called with each line that the workflow logs. */
  log?: (text: string) => void;
  /** Like `rllm.gateway.unenforceable`. Default `"refuse"`. */
  unenforceable?: "refuse" | "allow";
  /** Like `rllm.workflow.on_agent_error`. Default: `"fail"` with `raiseOnError`, else `"drop"`. */
  onAgentError?: OnAgentError;
}

/**
 * Runs a workflow on rows with replies from a function instead of a model.
 *
 * @returns episodes by row, then rollout
 *
 * @example
 * const [episode] = await runWorkflow({ workflow, rows: [{ left: 3, right: 8 }], reply: () => "8" });
 * expect(episode?.trajectories[0]?.reward).toBe(1);
 */
export async function runWorkflow<Row>(options: RunWorkflowOptions<Row>): Promise<Episode[]> {
  const { workflow, rows, reply, n = 1, purpose = "validate", timeoutSeconds = 10, raiseOnError = true } = options;
  const { maxPromptLength = Number.MAX_SAFE_INTEGER, maxResponseLength = Number.MAX_SAFE_INTEGER } = options;
  const { onAgentError = raiseOnError ? "fail" : "drop" } = options;
  const scripted = scriptedSampler(reply);
  const client = createSamplingClient({
    ...scripted,
    defaults: ownDistribution,
    limits: { maxPromptLength, maxResponseLength },
    seedFor: rolloutSeed(0),
  });
  const tasks: Task<Row>[] = rows.map((row, index) => ({ id: `row/${index}`, row, origin: `row ${index}` }));
  const gateway = await openGateway({
    chat: scripted.chat,
    vision: scripted.vision,
    model: "policy",
    unenforceable: options.unenforceable ?? "refuse",
  });
  try {
    return await runRollouts({
      tasks,
      n,
      workflow,
      client,
      purpose,
      timeoutSeconds,
      raiseOnError,
      onAgentError,
      gateway: rolloutGateway(gateway, { prefix: "", enforceSampling: purpose === "train" }),
      nParallelTasks: 256,
      onLog: ({ text }) => options.log?.(text),
      retryLimit: 0,
    });
  } finally {
    await gateway.close();
  }
}

// A sampler that answers from a script: for testing agents, workflows and rewards without a model.

/** A reply in parts: thinking, then text, then calls of tools. */
export interface ScriptedReply {
  reasoning?: string;
  text?: string;
  toolCalls?: readonly { name: string; arguments?: Readonly<Record<string, unknown>> }[];
}

/** One reply of a script. */
export type ScriptLine = string | ScriptedReply | Int32Array;

/**
 * A scripted reply: text, a reply in parts, or exact tokens of the chat. The end of turn is appended to text if it fits.
 * An image of the prompt is the character U+FFFC in the message and an entry of `media`.
 * A script that throws acts like a failing engine; a script that never settles acts like an engine that hangs.
 */
export type Script = (
  messages: TextMessage[],
  call: { prompt: Int32Array; media: readonly Media[]; params: SamplingParams },
) => ScriptLine | Promise<ScriptLine>;

/**
 * Answers the nth call of each conversation with the nth line, and all later calls with the last line.
 *
 * @example
 * runWorkflow({ workflow, rows, reply: lines({ toolCalls: [{ name: "add", arguments: { a: 1, b: 2 } }] }, "It is 3.") })
 */
export function lines(...all: readonly [ScriptLine, ...ScriptLine[]]): Script {
  return (messages) => {
    const spoken = messages.filter(({ role }) => role === "assistant").length;
    return all[Math.min(spoken, all.length - 1)]!;
  };
}

/** As the character chat writes it. */
function spell({ reasoning, text = "", toolCalls = [] }: ScriptedReply): string {
  const thought = reasoning === undefined ? "" : `<think>\n${reasoning}\n</think>\n\n`;
  const calls = toolCalls.map(({ name, arguments: given = {} }) => {
    return `<tool_call>\n${JSON.stringify({ name, arguments: given })}\n</tool_call>`;
  });
  return thought + [...(text === "" ? [] : [text]), ...calls].join("\n");
}

/**
 * A sampler whose replies a function writes, with a chat whose tokens are characters.
 *
 * @example
 * const { sampler, chat } = scriptedSampler((messages) => (messages.at(-1)?.content === "2+2" ? "4" : "no idea"));
 */
export function scriptedSampler(script: Script): { sampler: Sampler; chat: CharacterChat; vision: Vision } {
  const chat = characterChat();
  const image = chat.encode(imageCharacter);
  const vision: Vision = {
    placeholder: { text: imageCharacter, id: image[0]! },
    tokensOf: async (images) => images.map(() => image),
    loader: imageLoader(memoryStore()),
  };
  const sampler: Sampler = {
    version: -1,
    logprobs: "raw",
    sample: (requests, options) => sample(script, chat, requests, options),
    async load() {
      throw new RunError("a scripted sampler has no weights to load", { hint: "use tabularEngine, which has weights" });
    },
    close: async () => {},
  };
  return { sampler, chat, vision };
}

async function* sample(
  script: Script,
  chat: CharacterChat,
  requests: readonly SampleRequest[],
  { signal, onToken }: SampleOptions = {},
): AsyncGenerator<Sample, void, undefined> {
  const answer = async (
    { prompt, media = [], params, signal: own }: SampleRequest,
    request: number,
  ): Promise<Sample> => {
    const aborted = Promise.race([whenAborted(signal), whenAborted(own)]);
    const replying = (async () => script(chat.messagesOf(prompt), { prompt, media, params }))();
    const reply = await Promise.race([replying, aborted]);
    const { tokens, stopReason } = reply === undefined ? nothing : cut(reply, params, chat);
    tokens.forEach((token) => {
      onToken?.(request, token, 0);
    });
    // A script is certain of each token: its log-probability is 0.
    return { request, tokens, logprobs: new Float32Array(tokens.length), stopReason, policyVersion: -1 };
  };
  const running = new Map(requests.map((request, index) => [index, answer(request, index)]));
  while (running.size > 0) {
    const finished = await Promise.race(running.values());
    running.delete(finished.request);
    yield finished;
  }
}

const nothing = { tokens: new Int32Array(0), stopReason: "aborted" } as const;

/** A reply within the limits that the request sets: its stop strings, stop ids and number of tokens. */
function cut(
  line: ScriptLine,
  { maxTokens, stopStrings, stopIds, ignoreEos }: SamplingParams,
  chat: CharacterChat,
): { tokens: Int32Array; stopReason: "stop" | "length" } {
  const reply = typeof line === "object" && !(line instanceof Int32Array) ? spell(line) : line;
  const whole = typeof reply === "string" ? [...chat.encode(reply), chat.eosId] : [...reply];
  const ends = ignoreEos ? stopIds : [chat.eosId, ...stopIds];
  let text = "";
  for (const [index, token] of whole.slice(0, maxTokens).entries()) {
    text += chat.decode([token]);
    if (ends.includes(token) || stopStrings.some((stop) => text.includes(stop))) {
      return { tokens: Int32Array.from(whole.slice(0, index + 1)), stopReason: "stop" };
    }
  }
  return { tokens: Int32Array.from(whole.slice(0, maxTokens)), stopReason: "length" };
}

const whenAborted = (signal: AbortSignal | undefined) =>
  new Promise<undefined>((resolve) => {
    if (signal?.aborted) resolve(undefined);
    signal?.addEventListener("abort", () => resolve(undefined), { once: true });
  });

// A chat whose tokens are characters, so that tests can read tokens without a tokenizer file.

/** Stands for an image: Unicode's object replacement character. */
export const imageCharacter = "\uFFFC";

const roles = ["system", "user", "assistant", "tool"] as const;
/** Ids 0 to 4: the end of a turn, which is also the end of text, and the headers of the four roles. */
const specials = ["<|end|>", ...roles.map((role) => `<|${role}|>`)];
const escaped = (text: string) => text.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");
/** Stands for the characters that are not in the alphabet, if the alphabet contains it. */
const unknown = "\uFFFD";

/** A chat that needs no tokenizer's files. */
export interface CharacterChat extends Chat {
  readonly eosId: number;
  readonly vocabularySize: number;
  /** The messages of a rendered prompt, without the generation prompt. */
  messagesOf(tokens: ArrayLike<number>): TextMessage[];
}

/**
 * A conversation is rendered as `<|user|>hello<|end|><|assistant|>`; each mark and each character is a token. Tools are
 * offered in a system message at the beginning, thinking is in `<think>`, tool calls are JSON in `<tool_call>`.
 *
 * @param alphabet the characters of a small vocabulary, or a list that may also contain whole replies, each of which is one
 * token; by default every Unicode character is a token. Characters that are not in it are read as U+FFFD if that is
 */
export function characterChat(alphabet?: Iterable<string>): CharacterChat {
  const characters = alphabet === undefined ? undefined : [...new Set(alphabet)];
  const longer = (characters ?? []).filter((piece) => [...piece].length > 1).sort((a, b) => b.length - a.length);
  const pieces = new RegExp([...specials, ...longer].map(escaped).concat("[^]").join("|"), "gu");
  const ids = new Map([...specials, ...(characters ?? [])].map((piece, id) => [piece, id]));

  function toId(piece: string): number {
    const id =
      ids.get(piece) ?? ids.get(unknown) ?? (characters ? undefined : specials.length + (piece.codePointAt(0) ?? 0));
    if (id !== undefined) return id;
    throw new UserError(`the character ${JSON.stringify(piece)} is not in the alphabet ${JSON.stringify(alphabet)}`);
  }
  function toPiece(id: number): string {
    const index = id - specials.length;
    if (index < 0) return specials[id] ?? "";
    if (characters) return characters[index] ?? "";
    return index <= 0x10ffff ? String.fromCodePoint(index) : "";
  }
  const encode = (text: string) => Int32Array.from(text.match(pieces) ?? [], toId);
  const decode: Chat["decode"] = (tokens, { skipSpecial = false } = {}) =>
    Array.from(tokens, (id) => (skipSpecial && id < specials.length ? "" : toPiece(id))).join("");
  return {
    ...assembleChat({
      encode,
      decode,
      renderText,
      specials,
      format: { thinking: thinkTags, calls: hermes },
      ids: { bos: null, eos: 0, pad: null },
    }),
    eosId: 0,
    vocabularySize: specials.length + (characters?.length ?? 0x110000),
    messagesOf(tokens) {
      const messages: TextMessage[] = [];
      let open: TextMessage | undefined;
      for (const id of Array.from(tokens)) {
        const role = roles[id - 1];
        if (role) open = { role, content: "" };
        else if (id === 0 && open) {
          messages.push(open);
          open = undefined;
        } else if (open) open.content += toPiece(id);
      }
      return messages;
    },
  };
}

function renderText(
  messages: readonly ChatMessage[],
  { tools = [], addGenerationPrompt = true }: RenderOptions,
): string {
  const offered = tools.length > 0 ? `<|system|>tools: ${JSON.stringify(tools.map(toTemplateTool))}<|end|>` : "";
  const written = messages.map((message) => `<|${message.role}|>${contentOf(message)}<|end|>`).join("");
  return offered + written + (addGenerationPrompt ? "<|assistant|>" : "");
}

function contentOf({ content, reasoning, toolCalls = [] }: ChatMessage): string {
  const thinking = reasoning ? `<think>${reasoning}</think>` : "";
  const calls = toolCalls.map(
    ({ name, arguments: given }) => `<tool_call>${JSON.stringify({ name, arguments: given })}</tool_call>`,
  );
  const parts =
    typeof content === "string"
      ? [content]
      : content.map((part) => (part.type === "text" ? part.text : imageCharacter));
  return thinking + parts.join("") + calls.join("");
}
