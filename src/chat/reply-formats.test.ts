import { isDeepStrictEqual } from "node:util";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { parseJson } from "../base/json.ts";
import { nightly } from "../nightly.fixture.ts";
import { parseReply } from "./chat.ts";
import type { ToolDefinition } from "./messages.ts";
import type { ReplyFormat } from "./reply-format.ts";
import {
  formatOf,
  named,
  type RecordedCase,
  type RecordedModel,
  recorded,
  tokenizerOf,
  type WrittenReply,
} from "./reply-formats.fixture.ts";
import { formats } from "./reply-formats.ts";

/** Replies as the models' own templates write them, and broken ones, compared with what the parsers of vLLM read in them. */

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

/** Every format reads what is written in it, and no reply makes it throw, lose text or take long. */

interface Call {
  name: string;
  arguments: Record<string, unknown>;
}

const json = JSON.stringify;
const entries = (call: Call) => Object.entries(call.arguments);
const untyped = (value: unknown) => (typeof value === "string" ? value : json(value));
const hermes = (calls: Call[]) => calls.map((call) => `<tool_call>\n${json(call)}\n</tool_call>`).join("\n");
const xml = (open: string, close: string) => (calls: Call[]) =>
  calls
    .map((call) => {
      const parameters = entries(call).map(([key, value]) => `<parameter=${key}>\n${untyped(value)}\n</parameter>\n`);
      return `${open}\n<function=${call.name}>\n${parameters.join("")}</function>\n${close}`;
    })
    .join("\n");
const invokes = (prefix: string, typed: boolean) => (calls: Call[]) =>
  calls
    .map((call) => {
      const parameters = entries(call).map(([key, value]) => {
        const type = typed ? ` string="${typeof value === "string"}"` : "";
        return `<${prefix}parameter name="${key}"${type}>${untyped(value)}</${prefix}parameter>\n`;
      });
      return `<${prefix}invoke name="${call.name}">\n${parameters.join("")}</${prefix}invoke>\n`;
    })
    .join("");

function python(value: unknown): string {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object")
    return `{${Object.entries(value).map(([key, part]) => `${json(key)}: ${python(part)}`)}}`;
  return json(value).replaceAll("\\/", "/");
}
const pythonCalls = (calls: Call[]) =>
  calls.map((call) => `${call.name}(${entries(call).map(([key, value]) => `${key}=${python(value)}`)})`);

function gemma(value: unknown): string {
  if (typeof value === "string") return `<|"|>${value}<|"|>`;
  if (Array.isArray(value)) return `[${value.map(gemma)}]`;
  if (typeof value !== "object" || value === null) return json(value);
  return `{${Object.entries(value).map(([key, part]) => `<|"|>${key}<|"|>:${gemma(part)}`)}}`;
}

/** How a model of each format writes calls. */
const write: Record<keyof typeof formats, (calls: Call[]) => string> = {
  gpt_oss: (calls) =>
    calls
      .map(
        (call) =>
          `<|channel|>commentary to=functions.${call.name} <|constrain|>json<|message|>${json(call.arguments)}<|call|>`,
      )
      .join("<|start|>assistant"),
  gemma4: (calls) => calls.map((call) => `<|tool_call>call:${call.name}${gemma(call.arguments)}<tool_call|>`).join(""),
  minimax_m2: (calls) => `<minimax:tool_call>\n${invokes("", false)(calls)}</minimax:tool_call>`,
  deepseek_v32: (calls) => `<｜DSML｜function_calls>\n${invokes("｜DSML｜", true)(calls)}</｜DSML｜function_calls>`,
  deepseek_v3: (calls) =>
    `<｜tool▁calls▁begin｜>${calls.map((call) => `<｜tool▁call▁begin｜>${call.name}<｜tool▁sep｜>${json(call.arguments)}<｜tool▁call▁end｜>`).join("")}<｜tool▁calls▁end｜>`,
  kimi_k2: (calls) =>
    `<|tool_calls_section_begin|>${calls.map((call, index) => `<|tool_call_begin|>functions.${call.name}:${index}<|tool_call_argument_begin|>${json(call.arguments)}<|tool_call_end|>`).join("")}<|tool_calls_section_end|>`,
  seed_oss: xml("<seed:tool_call>", "</seed:tool_call>"),
  glm: (calls) =>
    calls
      .map((call) => {
        const given = entries(call).map(
          ([key, value]) => `<arg_key>${key}</arg_key>\n<arg_value>${untyped(value)}</arg_value>\n`,
        );
        return `<tool_call>${call.name}\n${given.join("")}</tool_call>`;
      })
      .join("\n"),
  qwen3_coder: xml("<tool_call>", "</tool_call>"),
  nemotron: (calls) => `<TOOLCALL>[${calls.map((call) => json(call)).join(", ")}]</TOOLCALL>`,
  lfm2: (calls) => `<|tool_call_start|>[${pythonCalls(calls).join(", ")}]<|tool_call_end|>`,
  olmo3: (calls) => `<function_calls>\n${pythonCalls(calls).join("\n")}\n</function_calls>`,
  minimax_m1: (calls) => `<tool_calls>\n${calls.map((call) => json(call)).join("\n")}\n</tool_calls>`,
  phi4: (calls) => `<|tool_call|>[${calls.map((call) => json(call))}]<|/tool_call|>`,
  granite: (calls) => `<tool_call>[${calls.map((call) => json(call))}]`,
  mistral: (calls) => calls.map((call) => `[TOOL_CALLS]${call.name}[ARGS]${json(call.arguments)}`).join(""),
  llama4: (calls) => `[${pythonCalls(calls).join(", ")}]`,
  qwen3: hermes,
  llama3: (calls) => calls.map((call) => json({ name: call.name, parameters: call.arguments })).join("; "),
};

/** Marks of all formats, which the arguments of each format may quote. */
const quotedMarks = [
  ...Object.values<ReplyFormat>(formats).flatMap(({ calls, thinking, ends }) => [
    ...(calls?.starts ?? []),
    ...(thinking ? [thinking.open, thinking.close] : []),
    ...(ends ?? []),
  ]),
  ..."</tool_call> </TOOLCALL> </tool_calls> <tool_call|> <|call|> <|end|> <|start|>assistant </function_calls> <|tool_call_end|>".split(
    " ",
  ),
  ..."<｜tool▁call▁end｜> <｜tool▁calls▁end｜> <|tool_calls_section_end|> <|/tool_call|> <|python_end|> [ARGS] ```json ``` ;".split(
    " ",
  ),
  ..."</function> <function=f> <parameter=x> </minimax:tool_call> </｜DSML｜function_calls> </seed:tool_call> <arg_key>".split(
    " ",
  ),
  ...[hermes, pythonCalls].flatMap((each) => each([{ name: "find", arguments: { text: "x" } }])),
];

/** What ends a value in the formats that cannot quote it. */
const unquotable: Partial<Record<keyof typeof formats, RegExp>> = {
  gemma4: /<\|"\|>/,
  minimax_m2: /<\/parameter>/,
  deepseek_v32: /<\/｜DSML｜parameter>/,
  // Values stand on lines of their own.
  seed_oss: /<\/parameter>|\n$|^\n/,
  qwen3_coder: /<\/parameter>|\n$|^\n/,
  glm: /<\/arg_value>/,
};

const letters = fc.string({ unit: fc.constantFrom(..."abZ09 é漢🎉\n\t\"'\\{}[]():,=<>/|_-.&#") });
const value = fc
  .array(fc.oneof(letters, fc.constantFrom(...quotedMarks)), { maxLength: 5 })
  .map((parts) => parts.join(""));
const tools: ToolDefinition[] = [
  { name: "find", parameters: { type: "object", properties: { text: { type: "string" }, other: {} } } },
  { name: "now_2" },
];
const nested = fc
  .jsonValue({ maxDepth: 3, stringUnit: fc.constantFrom(..."aé \"'\\{}[]:,") })
  // Formats without types write a text like any other value.
  .filter((each) => typeof each !== "string" && !json(each).includes("-0") && !/__proto__|\|/.test(json(each)));
const callIn = (name: string): fc.Arbitrary<Call> => {
  const ending = unquotable[name as keyof typeof formats];
  const text = value.filter((each) => !ending?.test(each));
  return fc.oneof(
    fc.record({ name: fc.constant("find"), arguments: fc.record({ text, other: nested }, { requiredKeys: [] }) }),
    fc.constant({ name: "now_2", arguments: {} }),
  );
};
const numRuns = nightly ? 2000 : 100;

describe.each(Object.entries<ReplyFormat>(formats))("%s", (name, format) => {
  const read = (text: string) => parseReply(text, format, { thinking: false, tools, callId: String });
  const written = write[name as keyof typeof formats];
  const call = callIn(name);

  test("reads what is written", () => {
    fc.assert(
      fc.property(fc.array(call, { minLength: 1, maxLength: 3 }), (calls) => {
        const { toolCalls, content, problems } = read(written(calls));
        const found = toolCalls.map((each) => ({ name: each.name, arguments: JSON.parse(json(each.arguments)) }));
        // Integers beyond 2^53 are their digits.
        expect(found).toEqual(parseJson(json(calls)));
        expect([content, problems]).toEqual(["", []]);
        for (const each of toolCalls) expect(parseJson(each.argumentsText!)).toEqual(each.arguments);
      }),
      { numRuns, seed: 5 },
    );
  });

  test("thinking before calls ends at its own mark, and calls without thinking have none", () => {
    const { thinking: marks, split } = format;
    if (marks === undefined || split) return;
    fc.assert(
      fc.property(fc.array(call, { minLength: 1, maxLength: 2 }), fc.boolean(), (calls, begun) => {
        const thought = `${begun ? "" : marks.open}\nplan\n${marks.close}\n\n${written(calls)}`;
        const after = parseReply(thought, format, { thinking: begun, tools, callId: String });
        const alone = read(written(calls));
        expect([after.reasoning, after.content, after.problems]).toEqual(["plan", "", []]);
        expect([alone.reasoning, alone.content, alone.problems]).toEqual([undefined, "", []]);
        expect(after.toolCalls).toEqual(alone.toolCalls);
      }),
      { numRuns, seed: 5 },
    );
  });

  test("half a reply loses no text", () => {
    fc.assert(
      fc.property(
        fc.array(call, { minLength: 1, maxLength: 2 }),
        fc.double({ min: 0, max: 1, noNaN: true }),
        (calls, part) => {
          const text = written(calls);
          const half = text.slice(0, Math.floor(text.length * part));
          const { toolCalls, content, reasoning, problems } = read(half);
          if (toolCalls.length === 0 && reasoning === undefined) expect(content.trim()).toBe(half.trim());
          const { open = "\0", close = "\0" } = format.thinking ?? {};
          if (!half.includes(open) && !half.includes(close) && half.length === text.length)
            expect(problems).toEqual([]);
          expect(toolCalls.length).toBeLessThanOrEqual(calls.length);
        },
      ),
      { numRuns: 60, seed: 5 },
    );
  });

  test("long hostile replies take linear time", () => {
    const marks = [
      ...(format.calls?.starts ?? []),
      format.thinking?.open ?? "",
      format.thinking?.close ?? "",
      ...(format.ends ?? []),
    ];
    const one = written([{ name: "find", arguments: { text: "a" } }]);
    const pieces = [
      ...marks,
      one,
      one.slice(0, -3),
      one.slice(3),
      "{",
      '{"a":',
      "[",
      "f(",
      "<parameter=",
      "<arg_key>",
      " ",
      "\\",
      "'",
      '"',
    ];
    for (const piece of pieces.filter((each) => each !== "")) {
      const measure = (size: number) => {
        const text = piece.repeat(Math.ceil(size / piece.length));
        const { user } = process.cpuUsage();
        read(text);
        read(one + text);
        read((format.calls?.starts[0] ?? "") + text);
        return process.cpuUsage().user - user;
      };
      measure(1000);
      // Linear time is a few microseconds per character; quadratic time at this length is over 40.
      const size = nightly ? 200_000 : 50_000;
      expect(measure(size), piece).toBeLessThan(size * 20);
    }
  });
});
