/** `hone chat`: talk to a model or a checkpoint; the reply appears as it is sampled. */
import { randomInt } from "node:crypto";
import { join } from "node:path";
import { createInterface } from "node:readline/promises";
import type { Policy } from "../backends/engine.ts";
import { adapterSpec, openEngine } from "../backends/open-engine.ts";
import type { Chat } from "../chat/chat.ts";
import { openChat } from "../chat/open-chat.ts";
import { outColors } from "../colors.ts";
import { composeConfig } from "../config/compose.ts";
import type { Config } from "../config/schema.ts";
import { printableLines } from "../printable.ts";
import { openCheckpoint } from "../trainer/open-checkpoint.ts";
import type { ChatMessage } from "../trajectories/types.ts";
import { showStatus } from "./show-status.ts";

interface ChatOptions {
  checkpoint?: string;
  message?: string;
  system?: string;
}

export async function chatCommand(overrides: string[], options: ChatOptions): Promise<void> {
  const checkpoint = options.checkpoint === undefined ? undefined : await openCheckpoint(options.checkpoint);
  const { config } = composeConfig({ input: checkpoint?.config ?? {}, overrides });
  const status = showStatus();
  const engine = await openEngine(config, { onStatus: status.say });
  try {
    const policy = await engine.createPolicy({ adapter: checkpoint ? adapterSpec(config) : { kind: "none" } });
    if (checkpoint) await policy.loadState(join(checkpoint.folder, "policy"), { optimizer: false });
    const chat = openChat(engine.model.directory, config, (line) => process.stderr.write(`${line}\n`));
    status.end();
    const messages: ChatMessage[] = options.system ? [{ role: "system", content: options.system }] : [];
    if (options.message !== undefined) {
      await answer(policy, chat, config, [...messages, { role: "user", content: options.message }]);
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
        messages.push({ role: "assistant", content: await answer(policy, chat, config, messages) });
      }
    } finally {
      terminal.close();
    }
  } finally {
    status.end();
    await engine.close();
  }
}

/** Samples one reply and prints it token by token. Returns its text. */
async function answer(policy: Policy, chat: Chat, config: Config, messages: ChatMessage[]): Promise<string> {
  const { temperature, top_p, top_k, min_p, max_tokens: maxTokens } = config.rllm.rollout.val;
  const request = {
    prompt: chat.render(messages, { addGenerationPrompt: true }),
    params: {
      maxTokens,
      temperature,
      topP: top_p,
      topK: top_k,
      minP: min_p,
      stopIds: [],
      stopStrings: [],
      seed: randomInt(2 ** 47),
    },
  };
  const decoder = chat.incrementalDecoder();
  let text = "";
  const show = (piece: string) => {
    text += piece;
    process.stdout.write(printableLines(piece));
  };
  let shown = 0;
  const onToken = (_: number, token: number) => {
    shown++;
    show(decoder.push(token));
  };
  for await (const sample of policy.sample([request], { onToken })) {
    // Not every engine tells tokens as they are sampled.
    for (const token of sample.tokens.subarray(shown)) show(decoder.push(token));
    show(decoder.end());
    process.stdout.write(sample.stopReason === "length" ? outColors.dim(" [max_response_length]\n") : "\n");
  }
  return text;
}
