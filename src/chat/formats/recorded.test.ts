/** Replies as the models' own templates write them, and broken ones, compared with what the parsers of vLLM read in them. */
import { isDeepStrictEqual } from "node:util";
import { describe, expect, test } from "vitest";
import { parseReply } from "../parse-reply.ts";
import type { ReplyFormat } from "./format.ts";
import { formats } from "./formats.ts";
import {
  formatOf,
  named,
  type RecordedCase,
  type RecordedModel,
  recorded,
  tokenizerOf,
  type WrittenReply,
} from "./recorded.fixture.ts";

/** The same in Hone's form and in vLLM's. Marks that became text are dropped, since vLLM drops them in some places. */
function comparable({ reasoning, content, calls }: Parts, dropped: readonly string[]) {
  const clean = (text: string) => dropped.reduce((rest, mark) => rest.replaceAll(mark, ""), text).trim();
  return { reasoning: clean(reasoning ?? ""), content: clean(content ?? ""), calls };
}

interface Parts {
  reasoning?: string | null | undefined;
  content: string | null;
  calls: readonly { name: string; arguments: unknown }[];
}

const isCut = ({ kind }: RecordedCase) => ["cut early", "cut late", "a quotation mark is missing"].includes(kind);

type Comparable = ReturnType<typeof comparable>;

/** vLLM 0.32 takes each vocabulary without mistral-common for one of version 11 without ids. */
const otherVocabulary = new Set(["Mistral Nemo", "Mistral Small 3.2"]);

/** How many replies that a template wrote, and Hone reads as they were, another project's parser reads differently. */
const misread: Readonly<Record<string, number>> = {
  // The package renderers drops an answer without the end of its message.
  "gpt-oss": 0,
  // Its parser of thinking, of Qwen3, takes a reply without thinking for thinking.
  "LFM2.5": 9,
  // Nested numbers and truth values become text.
  "Gemma 4": 1,
  "Seed-OSS": 2,
  // Text before the calls makes all of it text.
  "Llama 4": 1,
};

const beginsWith = (whole: Comparable["calls"], beginning: Comparable["calls"]) =>
  isDeepStrictEqual(whole.slice(0, beginning.length), beginning);

function differsOnPurpose(
  model: RecordedModel,
  each: RecordedCase,
  own: Comparable,
  theirs: Comparable,
  problems: number,
): boolean {
  const [tool, reasoning] = model.parsers;
  if (tool === null || otherVocabulary.has(model.name)) return true;
  // Half a call: they make a call of it, or drop all calls. Hone keeps its text and reports it, or reads what is complete.
  if (isCut(each)) return problems > 0 ? own.content !== "" : own.calls.length > 0;
  // They refuse names of tools that were not offered, or make texts of all values.
  if (each.kind === "another name") return own.calls.length > 0 && own.calls.every(({ name }) => name === "nowhere");
  // Text around calls: they drop it, and differ in whether calls after text and repeated calls count.
  if (["text after", "text before", "twice", "spaces"].includes(each.kind)) {
    return beginsWith(own.calls, theirs.calls) || beginsWith(theirs.calls, own.calls);
  }
  if (!isDeepStrictEqual(own.calls, theirs.calls)) return false;
  // They drop text next to calls.
  if (own.calls.length > 0 && theirs.content === "" && own.reasoning === theirs.reasoning) return true;
  // They take the whole reply for thinking, since the prompt may have begun it.
  return reasoning !== null && own.reasoning === "" && theirs.reasoning === own.content;
}

describe.each(recorded.models.map((model) => [model.name, model] as const))("%s", (name, model: RecordedModel) => {
  const tokenizer = tokenizerOf(model);
  const format: ReplyFormat = model.facts ? formatOf(model) : formats[named[name]!];
  const { open = "", close = "" } = format.thinking ?? {};
  const marks = [...tokenizer.specials, ...(format.thinking ? [open, close] : [])];

  const read = ({ tokens, end }: Pick<RecordedCase, "tokens" | "end">) => {
    const text = tokenizer.decode(tokens);
    // The prompt began the thinking if only its end was sampled.
    const thinking = format.thinking !== undefined && !text.includes(open) && text.includes(close);
    const reply = parseReply(text, format, { thinking, tools: recorded.tools, callId: String });
    return {
      text,
      end,
      reply,
      calls: reply.toolCalls.map(({ name, arguments: given }) => ({ name, arguments: given })),
    };
  };

  test("what its template writes is read as it was", () => {
    for (const each of model.cases) {
      const { message } = each;
      if (message === undefined) continue;
      const { reply, calls, text } = read(each);
      const { reasoning, content, calls: written = [] }: WrittenReply = message;
      expect(comparable({ ...reply, calls }, marks), text).toEqual(
        comparable({ reasoning, content, calls: written }, marks),
      );
      expect(reply.problems, text).toEqual([]);
    }
  });

  test("the same is read as by another project's parser, or the difference is on purpose", () => {
    let same = 0;
    let misreadings = 0;
    for (const each of model.cases) {
      const { reply, calls, text } = read(each);
      if ("error" in each.read) {
        // Their parser failed. Nothing is lost in Hone's.
        if (isCut(each)) expect(reply.problems.length + calls.length, text).toBeGreaterThan(0);
        continue;
      }
      const own = comparable({ ...reply, calls }, marks);
      const theirs = comparable(each.read, marks);
      const what = `${each.kind}: ${text}\n${JSON.stringify(own)}\n${JSON.stringify(theirs)}`;
      if (isDeepStrictEqual(own, theirs)) same++;
      else if (differsOnPurpose(model, each, own, theirs, reply.problems.length)) continue;
      else if (each.message) misreadings++;
      else expect(own, what).toEqual(theirs);
    }
    expect(misreadings).toBe(misread[name] ?? 0);
    // Without an independent parser, only the messages above are compared.
    if (model.parsers[0] !== null && model.cases.length > 10 && !otherVocabulary.has(name) && !(name in misread)) {
      expect(same).toBeGreaterThan(model.cases.length / 4);
    }
  });

  test("every broken reply keeps its text", () => {
    for (const each of model.cases.filter(isCut)) {
      const { reply, text } = read(each);
      const kept = [reply.reasoning, reply.content, ...reply.toolCalls.map((call) => JSON.stringify(call))].join("");
      for (const word of ["Basel", "Bern"]) if (text.includes(word)) expect(kept, text).toContain(word);
    }
  });
});

test("at least 300 replies in at least 12 formats are recorded", () => {
  expect(recorded.models.flatMap(({ cases }) => cases).length).toBeGreaterThanOrEqual(300);
  const used = new Set(
    recorded.models.map((model) => (model.facts ? formatOf(model).calls : formats[named[model.name]!].calls)),
  );
  expect(used.size).toBeGreaterThanOrEqual(12);
});
