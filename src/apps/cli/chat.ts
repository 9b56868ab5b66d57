/** `hone chat`: a conversation with a model or a checkpoint. Replies appear while they are sampled. */
import { randomInt } from "node:crypto";
import { createInterface } from "node:readline";
import type { Command } from "commander";
import type { Sampler, SamplingParams } from "../../backends/engine.ts";
import { HoneError, RunError, UserError } from "../../base/errors.ts";
import { printableLines } from "../../base/text.ts";
import { type NoVision, renderWithImages, type Vision } from "../../chat/images.ts";
import { type ChatMessage, type ImagePart, toMessage } from "../../chat/messages.ts";
import type { Chat } from "../../chat/types.ts";
import type { ComposedConfig } from "../../config/compose.ts";
import type { Config } from "../../config/schema.ts";
import type { Origin } from "../../config/tree.ts";
import { outColors } from "../../tracking/console-lines.ts";
import { openCheckpoint } from "../../trainer/resume.ts";
import { checkpoint, composeSupported, openModel, overrides } from "./options.ts";

interface ChatFlags {
  checkpoint?: string;
  message?: string;
  system?: string;
}

export function register(command: Command): void {
  command
    .argument(...overrides)
    .addOption(checkpoint())
    .option("--message <text>", "answer this one message and stop")
    .option("--system <text>", "a system message")
    .addHelpText("after", help)
    .action(chatCommand);
}

const defaultReplyTokens = 2048;

const help = `
A reply has at most ${defaultReplyTokens.toLocaleString("en-US")} tokens, regardless of the run's own limit; to change
that, add rllm.rollout.val.max_tokens=64, for example.

/image FILE attaches a PNG or JPEG image to the next message, if the model
accepts images.

Examples:
  hone chat
  hone chat --checkpoint runs/latest
  hone chat model.name=./my-model --message "Which number is larger, 12 or 31?"`;

async function chatCommand(overrides: string[], flags: ChatFlags): Promise<void> {
  const checkpoint = flags.checkpoint === undefined ? undefined : await openCheckpoint(flags.checkpoint);
  const composed = composeSupported(overrides, checkpoint);
  const { config } = composed;
  const { name, close, ...model } = await openModel(composed, checkpoint, (line) => process.stderr.write(`${line}\n`));
  try {
    const turn: Turn = {
      ...model,
      maxTokens: replyLimit(composed),
      sampling: config.rllm.rollout.val,
      print: (text) => process.stdout.write(text),
    };
    const messages: ChatMessage[] = flags.system ? [{ role: "system", content: flags.system }] : [];
    if (flags.message !== undefined) {
      await answer(turn, [...messages, { role: "user", content: flags.message }]);
      return;
    }
    const title = checkpoint ? `${name}, step ${checkpoint.step}` : name;
    process.stdout.write(outColors.dim(`${title}. An empty line or Ctrl-C ends the conversation.\n`));
    await converse(turn, messages);
  } finally {
    await close();
  }
}

/** Reads a message from each line, also from lines that arrive during a reply. */
export async function converse(
  turn: Turn,
  messages: ChatMessage[],
  input: NodeJS.ReadableStream = process.stdin,
): Promise<void> {
  const terminal = createInterface({ input, output: process.stdout, prompt: outColors.bold("> ") });
  // Newer versions of Node throw if a closed one prompts.
  let isOpen = true;
  terminal.once("close", () => {
    isOpen = false;
  });
  let images: ImagePart[] = [];
  terminal.prompt();
  for await (const text of terminal) {
    if (text.trim() === "") return;
    const file = /^\/image(?:\s+(.*))?$/.exec(text.trim());
    if (file === null) {
      messages.push({ role: "user", content: images.length === 0 ? text : [...images, { type: "text", text }] });
      images = [];
      messages.push(await answer(turn, messages));
    } else {
      const image = await attach(turn, file[1]);
      if (image !== undefined) images.push(image);
    }
    if (isOpen) terminal.prompt();
  }
}

/** A mistake does not end the conversation. */
async function attach({ vision, print }: Turn, file: string | undefined): Promise<ImagePart | undefined> {
  try {
    if (typeof vision === "string") throw new UserError(vision);
    if (file === undefined) throw new UserError("/image needs a file", { hint: "/image picture.png" });
    const image = await vision.loader.load(file);
    await vision.tokensOf([image]); // the worker refuses some files that the loader accepts
    print(outColors.dim(`${file}: ${image.width} x ${image.height} pixels, sent with the next message\n`));
    return { type: "image", image };
  } catch (error) {
    if (!(error instanceof HoneError)) throw error;
    print(`${printableLines(error.message)}${error.hint === undefined ? "" : ` (${error.hint})`}\n`);
    return undefined;
  }
}

interface Turn {
  sampler: Sampler;
  chat: Chat;
  vision: Vision | NoVision;
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
  const { sampler, chat, vision, maxLength, sampling, print } = turn;
  const { tokens: prompt, media } = await renderWithImages(chat, vision, messages);
  if (prompt.length >= maxLength) {
    throw new UserError(`the conversation has ${prompt.length} tokens, and the model reads at most ${maxLength}`, {
      hint: "start a new conversation",
    });
  }
  const maxTokens = Math.min(turn.maxTokens, maxLength - prompt.length);
  const { temperature, top_p: topP, top_k: topK, min_p: minP } = sampling;
  const params: SamplingParams = {
    maxTokens,
    temperature,
    topP,
    topK,
    minP,
    stopIds: chat.stopIds,
    stopStrings: [],
    seed: randomInt(2 ** 47),
  };
  const decoder = chat.incrementalDecoder({ skipSpecial: true });
  const show = (text: string) => print(printableLines(text));
  let shown = 0;
  const onToken = (_: number, token: number) => {
    shown++;
    show(decoder.push(token));
  };
  for await (const { tokens, stopReason } of sampler.sample(
    [{ prompt, ...(media.length > 0 ? { media } : {}), params }],
    { onToken },
  )) {
    // Not every engine reports tokens while it samples them.
    for (const token of tokens.subarray(shown)) show(decoder.push(token));
    show(decoder.end());
    print(stopReason === "length" ? outColors.dim(` [cut off after ${tokens.length} tokens]\n`) : "\n");
    return toMessage(chat.parse(tokens));
  }
  throw new RunError("the engine returned no reply");
}

/** The limit given on this command line. A run's own limit suits its task, not a conversation. */
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

function isTyped(origin: Origin): boolean {
  if (origin.kind === "override") return true;
  if (origin.kind === "synced") return isTyped(origin.of);
  return origin.kind === "reference" && [origin.at, origin.from].some((one) => one !== undefined && isTyped(one));
}
