/** `hone chat`: talk to a model or a checkpoint; the reply appears as it is sampled. */
import { randomInt } from "node:crypto";
import { join } from "node:path";
import { createInterface } from "node:readline/promises";
import type { Policy, SamplingParams } from "../backends/engine.ts";
import { adapterSpec, openEngine } from "../backends/open-engine.ts";
import type { Chat } from "../chat/chat.ts";
import { type ChatMessage, toMessage } from "../chat/messages.ts";
import { openChat } from "../chat/open-chat.ts";
import { outColors } from "../colors.ts";
import { type ComposedConfig, composeConfig } from "../config/compose.ts";
import type { Origin } from "../config/origin.ts";
import type { Config } from "../config/schema.ts";
import { RunError, UserError } from "../errors.ts";
import { printableLines } from "../printable.ts";
import { openCheckpoint } from "../trainer/open-checkpoint.ts";
import { showStatus } from "./show-status.ts";

interface ChatOptions {
  checkpoint?: string;
  message?: string;
  system?: string;
}

export async function chatCommand(overrides: string[], options: ChatOptions): Promise<void> {
  const checkpoint = options.checkpoint === undefined ? undefined : await openCheckpoint(options.checkpoint);
  const composed = composeConfig({ input: checkpoint?.config ?? {}, overrides });
  const { config } = composed;
  const status = showStatus();
  const engine = await openEngine(config, { onStatus: status.say });
  try {
    const policy = await engine.createPolicy({ adapter: checkpoint ? adapterSpec(config) : { kind: "none" } });
    if (checkpoint) await policy.loadState(join(checkpoint.folder, "policy"), { optimizer: false });
    const chat = openChat(engine.model.directory, config, (line) => process.stderr.write(`${line}\n`));
    status.end();
    const turn: Turn = {
      ...{ policy, chat, maxTokens: replyLimit(composed), maxLength: engine.model.maxLength },
      sampling: config.rllm.rollout.val,
      print: (text) => process.stdout.write(text),
    };
    const messages: ChatMessage[] = options.system ? [{ role: "system", content: options.system }] : [];
    if (options.message !== undefined) {
      await answer(turn, [...messages, { role: "user", content: options.message }]);
      return;
    }
    const name = checkpoint ? `${engine.model.name}, step ${checkpoint.step}` : engine.model.name;
    process.stdout.write(outColors.dim(`${name}. An empty line or Ctrl-C ends the conversation.\n`));
    const terminal = createInterface({ input: process.stdin, output: process.stdout });
    try {
      for (;;) {
        const text = await terminal.question(outColors.bold("> ")).catch(() => "");
        if (text.trim() === "") return;
        messages.push({ role: "user", content: text });
        messages.push(await answer(turn, messages));
      }
    } finally {
      terminal.close();
    }
  } finally {
    status.end();
    await engine.close();
  }
}

interface Turn {
  policy: Policy;
  chat: Chat;
  /** Longest reply in tokens. */
  maxTokens: number;
  /** Longest conversation in tokens, the reply included. */
  maxLength: number;
  sampling: Config["rllm"]["rollout"]["val"];
  print: (text: string) => void;
}

/**
 * Samples one reply and prints it token by token, without the special tokens.
 * @returns the message to append to the history
 * @throws UserError when the conversation fills the model's context
 */
export async function answer(turn: Turn, messages: readonly ChatMessage[]): Promise<ChatMessage> {
  const { policy, chat, maxLength, sampling, print } = turn;
  const prompt = chat.render(messages, { addGenerationPrompt: true });
  if (prompt.length >= maxLength) {
    throw new UserError(`the conversation has ${prompt.length} tokens; the model reads at most ${maxLength}`, {
      hint: "start a new conversation",
    });
  }
  const maxTokens = Math.min(turn.maxTokens, maxLength - prompt.length);
  const { temperature, top_p: topP, top_k: topK, min_p: minP } = sampling;
  const params: SamplingParams = {
    ...{ maxTokens, temperature, topP, topK, minP },
    ...{ stopIds: chat.stopIds, stopStrings: [], seed: randomInt(2 ** 47) },
  };
  const decoder = chat.incrementalDecoder({ skipSpecial: true });
  const show = (text: string) => print(printableLines(text));
  let shown = 0;
  const onToken = (_: number, token: number) => {
    shown++;
    show(decoder.push(token));
  };
  for await (const { tokens, stopReason } of policy.sample([{ prompt, params }], { onToken })) {
    // Not every engine reports tokens while it samples them.
    for (const token of tokens.subarray(shown)) show(decoder.push(token));
    show(decoder.end());
    print(stopReason === "length" ? outColors.dim(` [cut off after ${tokens.length} tokens]\n`) : "\n");
    return toMessage(chat.parse(tokens));
  }
  throw new RunError("the engine returned no reply");
}

/** A run's limit suits its task, not a conversation: only one given on this command line counts. */
export function replyLimit({ config, origins }: ComposedConfig): number {
  const limits = [
    ["rllm.rollout.val.max_tokens", config.rllm.rollout.val.max_tokens],
    ["data.max_response_length", config.data.max_response_length],
  ] as const;
  const typed = limits.find(([key]) => {
    const origin = origins.get(key);
    return origin !== undefined && isTyped(origin);
  });
  return typed?.[1] ?? defaultReplyTokens;
}

const defaultReplyTokens = 2048;

function isTyped(origin: Origin): boolean {
  if (origin.kind === "override") return true;
  if (origin.kind === "synced") return isTyped(origin.of);
  return origin.kind === "reference" && [origin.at, origin.from].some((one) => one !== undefined && isTyped(one));
}
