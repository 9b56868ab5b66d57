/**
 * Plays a conversation with tools in each model folder of reply-formats.py, which describes the steps, and writes the renderings
 * that it needs.
 *
 *   npx tsx scripts/proofs/recorders/reply-formats.ts FOLDER
 */
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { compileJinja } from "../../../src/chat/jinja/jinja.ts";
import { Dict } from "../../../src/chat/jinja/values.ts";
import { checkTemplate } from "../../../src/chat/renderers.ts";
import { either, type ReplyFormat } from "../../../src/chat/reply-format.ts";
import { question, recordedChat } from "../../../src/chat/reply-formats.fixture.ts";
import { detectFormat, formats, hermes } from "../../../src/chat/reply-formats.ts";
import { compileTemplate, findTemplate } from "../../../src/chat/template.ts";
import { openTokenizer } from "../../../src/chat/tokenizer.ts";
import { playConversation, scriptedReplies } from "../../../src/gateway/formats.fixture.ts";

const folder = process.argv[2] ?? "";
const { models, tools } = JSON.parse(readFileSync(join(folder, "replies.json"), "utf8"));

let variables: Record<string, unknown> = {};
const compile: typeof compileJinja = (source) => {
  const template = compileJinja(source);
  return {
    render(given, work) {
      variables = JSON.parse(JSON.stringify(given, toPlain));
      return template.render(given, work);
    },
  };
};

function toPlain(_: string, value: unknown): unknown {
  if (value instanceof Dict) return Object.fromEntries(value.pairs());
  return typeof value === "bigint" ? Number(value) : value;
}

async function recordModel(name: string): Promise<void> {
  const directory = join(folder, name);
  const tokenizer = openTokenizer(directory);
  const sources = findTemplate(directory, tokenizer.config)!;
  const own = detectFormat(sources.plain);
  const { renderText, takesTools } = compileTemplate(sources, tokenizer.config, directory, own.callId, compile);
  const format = takesTools ? own : { ...own, calls: either(own.calls, hermes) };
  const renderings = new Map<string, object>();
  const logged: typeof renderText = (messages, options) => {
    const key = JSON.stringify([messages, options]);
    let text: string | null = null;
    try {
      text = renderText(messages, options);
      return text;
    } finally {
      const { bos_token, eos_token, pad_token, unk_token, documents, ...rest } = variables;
      renderings.set(key, { key, variables: rest, text });
    }
  };
  const cases = JSON.parse(readFileSync(join(directory, "cases.json"), "utf8"));
  const opening = recordedChat(tokenizer, tokenizer.config.eos_token!, format, logged, true);
  const texts = scriptedReplies(cases, opening, tools);
  const replies = texts.map(({ text }) => tokenizer.encode(text));
  for (const accumulate of [true, false]) {
    const chat = recordedChat(tokenizer, tokenizer.config.eos_token!, format, logged, accumulate);
    const { played, refused } = await playConversation(chat, replies, tools);
    // What the template makes of the whole history.
    for (const { messages } of played) logged(messages, { tools, thinking: undefined, reasoningEffort: undefined });
    if (refused !== undefined) console.error(name, refused);
    for (const thinking of [undefined, true, false]) {
      try {
        chat.renderText([{ role: "user", content: question }], { thinking });
      } catch (error) {
        console.error(name, String(error));
      }
    }
    if (!accumulate) continue;
    const marks = Object.entries(formats).flatMap(([, { detectedBy }]) =>
      sources.plain.includes(detectedBy) ? [detectedBy] : [],
    );
    const closes = Object.values<ReplyFormat>(formats).flatMap(({ thinking }) =>
      thinking && sources.plain.includes(thinking.close) ? [thinking.close] : [],
    );
    const facts = {
      marks: [...new Set([...marks, ...closes])],
      takesTools,
      refused: refused !== undefined,
      check: checkTemplate(chat),
    };
    writeFileSync(join(directory, "facts.json"), JSON.stringify(facts));
    writeFileSync(join(directory, "prompt.txt"), chat.renderText([{ role: "user", content: question }], { tools }));
    console.error(name, JSON.stringify(facts), played.map(({ starts }) => starts ?? "continues").join(" "));
  }
  writeFileSync(join(directory, "renderings.json"), JSON.stringify([...renderings.values()]));
}

for (const name of models as string[]) {
  try {
    await recordModel(name);
  } catch (error) {
    // Its replies are still recorded.
    console.error(name, "cannot be played:", String(error));
  }
}
