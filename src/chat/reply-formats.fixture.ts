/** Recorded models: their tokens, replies and renderings, without their templates (scripts/proofs/recorders/reply-formats.py). */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gunzipSync } from "node:zlib";
import { UserError } from "../base/errors.ts";
import { assembleChat } from "./chat.ts";
import type { ToolDefinition } from "./messages.ts";
import type { TemplateCheck } from "./renderers.ts";
import { either, type ReplyFormat } from "./reply-format.ts";
import { detectFormat, type formats, hermes } from "./reply-formats.ts";
import type { RenderText } from "./template.ts";
import { openTokenizer, type Tokenizer } from "./tokenizer.ts";
import type { Chat } from "./types.ts";

export interface WrittenReply {
  reasoning?: string;
  content: string;
  calls?: { name: string; arguments: Record<string, unknown> }[];
}

export interface RecordedCase {
  /** "template": rendered by the model's own. "written": in its format. Otherwise what was changed in such a reply. */
  kind: string;
  tokens: number[];
  /** The token that ends it. */
  end: string;
  /** What it says; absent if it was changed. */
  message?: WrittenReply;
  /** What the parsers of another project read. */
  read:
    | { reasoning: string | null; content: string | null; calls: { name: string; arguments: unknown }[] }
    | { error: string };
}

export interface RecordedModel {
  name: string;
  special: string[];
  plain: string[];
  eos: string;
  /** Another project's parsers of tool calls and of thinking, if there are any. */
  parsers: [tool: string | null, reasoning: string | null];
  cases: RecordedCase[];
  /** Null for models without a template, or whose template Hone cannot render. */
  facts: { marks: string[]; takesTools: boolean; refused: boolean; check: TemplateCheck } | null;
  /** Key, number of tokens shared with the rendering before it, and the rest. The tokens are those of transformers. */
  renderings: [key: string, same: number, ids: number[] | null][];
}

interface Recorded {
  tools: ToolDefinition[];
  models: RecordedModel[];
}

export const recorded: Recorded = JSON.parse(
  gunzipSync(readFileSync(new URL("reply-formats.fixture.json.gz", import.meta.url))).toString("utf8"),
);

/** Models without a template, or whose template Hone cannot render, are named. */
export const named: Record<string, keyof typeof formats> = {
  "Llama 4": "llama4",
  "Phi-4-mini": "phi4",
  "OLMo 3": "olmo3",
  "Hermes 3": "qwen3",
  "Seed-OSS": "seed_oss",
};

const base = readFileSync(new URL("./fixtures/chatml/tokenizer.json", import.meta.url), "utf8");

/** A small vocabulary with the model's own marks, as the recorder makes it. */
export function tokenizerOf({ special, plain }: Pick<RecordedModel, "special" | "plain">): Tokenizer {
  const content = JSON.parse(base);
  const known = new Set(content.added_tokens.map((token: { content: string }) => token.content));
  let free = Math.max(...Object.values<number>(content.model.vocab)) + 1;
  const added = [...special.map((text) => [text, true] as const), ...plain.map((text) => [text, false] as const)];
  for (const [text, isSpecial] of added) {
    if (known.has(text)) continue;
    const flags = { single_word: false, lstrip: false, rstrip: false, normalized: false, special: isSpecial };
    content.added_tokens.push({ id: free++, content: text, ...flags });
  }
  const folder = mkdtempSync(join(tmpdir(), "hone-recorded-"));
  try {
    writeFileSync(join(folder, "tokenizer.json"), JSON.stringify(content));
    return openTokenizer(folder);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/** Detected from the marks that the model's template has. */
export function formatOf({ facts }: RecordedModel): ReplyFormat {
  const detected = detectFormat(facts?.marks.join(" ") ?? "");
  return facts && !facts.takesTools ? { ...detected, calls: either(detected.calls, hermes) } : detected;
}

/** Renders what transformers rendered when it was recorded. */
export function replay({ name, renderings }: RecordedModel, { decode }: Tokenizer): RenderText {
  const texts = new Map<string, string | null>();
  let last: number[] = [];
  for (const [key, same, ids] of renderings) {
    if (ids !== null) last = [...last.slice(0, same), ...ids];
    texts.set(keyOf(JSON.parse(key)), ids === null ? null : decode(last));
  }
  return (messages, options) => {
    const key = keyOf([messages, options]);
    const text = texts.get(key);
    if (text === undefined) throw new Error(`${name}: no recorded rendering of ${key}; run the recorder again`);
    if (text === null) throw new UserError(`the template of ${name} refuses these messages`);
    const [start] = randomMark.exec(JSON.stringify(messages)) ?? [];
    return start === undefined ? text : text.replaceAll("Qz7", start);
  };
}

/** The beginning of the marks that `bridge` renders in place of replies. Those of the recorder begin with `Qz7`. */
const randomMark = /Qz[a-z]{16}(?=reply7zQ|thinking\d+7zQ)/;

/** Templates do not get the text of the arguments. */
const keyOf = (asked: unknown) =>
  JSON.stringify(asked, (key, value: unknown) => (key === "argumentsText" ? undefined : value)).replaceAll(
    new RegExp(randomMark, "g"),
    "Qz7",
  );

/** The chat of a recorded model, or, in the recorder, of a real one. */
export function recordedChat(
  tokenizer: Pick<Tokenizer, "encode" | "decode" | "specials" | "idOf">,
  eos: string,
  format: ReplyFormat,
  renderText: RenderText,
  accumulateReasoning: boolean,
): Chat {
  const { encode, decode, specials, idOf } = tokenizer;
  const ids = { bos: null, eos: idOf(eos), pad: null };
  return assembleChat({ encode, decode, specials, format, renderText, ids, accumulateReasoning });
}

/** A question that the recorder rendered with each setting of thinking. */
export const question = "Where?";
