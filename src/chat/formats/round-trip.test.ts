/** Every format reads what is written in it, and no reply makes it throw, lose text or take long. */
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { nightly } from "../../nightly.fixture.ts";
import type { ToolDefinition } from "../messages.ts";
import { parseReply } from "../parse-reply.ts";
import type { ReplyFormat } from "./format.ts";
import { formats } from "./formats.ts";

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

/** Texts without what ends a value in one of the formats: no format can quote its own marks. */
const value = fc
  .string({ unit: fc.constantFrom(..."abZ09 é漢🎉\n\t\"'\\{}[]():,=<>/|_-.&#") })
  .filter((text) => !/<[/|｜]|\|>|\n$|^\n/.test(text));
const tools: ToolDefinition[] = [
  { name: "find", parameters: { type: "object", properties: { text: { type: "string" }, other: {} } } },
  { name: "now_2" },
];
const nested = fc
  .jsonValue({ maxDepth: 3, stringUnit: fc.constantFrom(..."aé \"'\\{}[]:,") })
  // Formats without types write a text like any other value.
  .filter((each) => typeof each !== "string" && !json(each).includes("-0") && !/__proto__|\|/.test(json(each)));
const call: fc.Arbitrary<Call> = fc.oneof(
  fc.record({ name: fc.constant("find"), arguments: fc.record({ text: value, other: nested }, { requiredKeys: [] }) }),
  fc.constant({ name: "now_2", arguments: {} }),
);

describe.each(Object.entries<ReplyFormat>(formats))("%s", (name, format) => {
  const read = (text: string) => parseReply(text, format, { thinking: false, tools, callId: String });
  const written = write[name as keyof typeof formats];

  test("reads what is written", () => {
    fc.assert(
      fc.property(fc.array(call, { minLength: 1, maxLength: 3 }), (calls) => {
        const { toolCalls, content, problems } = read(written(calls));
        const found = toolCalls.map((each) => ({ name: each.name, arguments: JSON.parse(json(each.arguments)) }));
        expect(found).toEqual(JSON.parse(json(calls)));
        expect([content, problems]).toEqual(["", []]);
        for (const each of toolCalls) expect(JSON.parse(each.argumentsText!)).toEqual(each.arguments);
      }),
      { numRuns: 60, seed: 5 },
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
          const { toolCalls, content, reasoning } = read(half);
          if (toolCalls.length === 0 && reasoning === undefined) expect(content.trim()).toBe(half.trim());
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
