/** Calls in Python's syntax, such as `[add(a=1, b="two")]`, with literals as arguments. */
import {
  allOrProblem,
  between,
  type CallFormat,
  callFromValue,
  deepest,
  malformed,
  noCalls,
  type Skip,
  type WrittenCall,
} from "./reply-format.ts";

class NotPython extends Error {}

/** @returns the calls of a list, or of calls separated by commas or lines; what is wrong if it is anything else */
function readPythonCalls(text: string): WrittenCall[] | string {
  const reader = createReader(text, 0);
  try {
    const calls = readCalls(reader);
    if (!reader.atEnd()) return `${JSON.stringify(reader.rest())} follows the list`;
    return calls.length === 0 ? "it has no call" : allOrProblem(calls);
  } catch (error) {
    if (error instanceof NotPython) return error.message;
    throw error;
  }
}

/** Reads over what `readPythonCalls` reads. */
const skipPythonCalls: Skip = (text, from) => {
  const reader = createReader(text, from);
  try {
    const { length } = readCalls(reader);
    return { state: length > 0 ? "whole" : "other", end: reader.position() };
  } catch (error) {
    if (!(error instanceof NotPython)) throw error;
    const end = reader.position();
    return { state: end >= text.length ? "cut" : "other", end };
  }
};

function readCalls(reader: ReturnType<typeof createReader>): (WrittenCall | string)[] {
  const calls: (WrittenCall | string)[] = [];
  const inList = reader.take("[");
  while (inList ? !reader.take("]") : reader.atName()) {
    calls.push(reader.call());
    reader.take(",");
  }
  return calls;
}

/** Integers beyond 2^53 stay their digits, as in `parseJson`. */
function numberOf(digits: string): number | string {
  const value = Number(digits);
  return /^[+-]?\d+$/.test(digits) && !Number.isSafeInteger(value) ? digits.replace("+", "") : value;
}

/** A list or an object, as templates write Python values. Undefined if it is anything else. */
export function readPythonValue(text: string): unknown {
  const reader = createReader(text, 0);
  try {
    const value = reader.value(0);
    return reader.atEnd() ? value : undefined;
  } catch (error) {
    if (error instanceof NotPython) return undefined;
    throw error;
  }
}

const names = new Map<string, unknown>([
  ...([
    ["True", true],
    ["true", true],
    ["False", false],
    ["false", false],
  ] as const),
  ...([
    ["None", null],
    ["null", null],
  ] as const),
]);
const escapes: Readonly<Record<string, string>> = {
  n: "\n",
  t: "\t",
  r: "\r",
  b: "\b",
  f: "\f",
  v: "\v",
  "0": "\0",
  "\n": "",
};

const nameStart = /[\p{L}_]/u;

function createReader(text: string, from: number) {
  let at = from;
  const fail = (what: string): never => {
    throw new NotPython(`${what} at character ${at}`);
  };
  const match = (pattern: RegExp): string | undefined => {
    pattern.lastIndex = at;
    const found = pattern.exec(text)?.[0];
    at += found?.length ?? 0;
    return found;
  };
  const skip = () => match(/\s+/y);
  /** Whether the mark comes next; if so, it is skipped. */
  function take(mark: string): boolean {
    skip();
    if (!text.startsWith(mark, at)) return false;
    at += mark.length;
    return true;
  }
  const expect = (mark: string) => take(mark) || fail(`${JSON.stringify(mark)} is missing`);

  function call(): WrittenCall | string {
    skip();
    const name = match(/[\p{L}_][\p{L}\p{N}_.-]*/uy) ?? fail("a function's name is missing");
    expect("(");
    const given: Record<string, unknown> = Object.create(null);
    while (!take(")")) {
      skip();
      const key = match(/[\p{L}_][\p{L}\p{N}_]*/uy) ?? fail("an argument's name is missing");
      expect("=");
      if (key in given) fail("an argument is given twice");
      given[key] = value(0);
      if (!take(",")) {
        expect(")");
        break;
      }
    }
    return callFromValue({ name, arguments: Object.fromEntries(Object.entries(given)) }, ["arguments"]);
  }

  function value(depth: number): unknown {
    if (depth > deepest) fail(`more than ${deepest} levels`);
    skip();
    const first = text.charAt(at);
    if (first === '"' || first === "'") return strings();
    if (first === "[") return list("[", "]", depth);
    if (first === "(") return list("(", ")", depth);
    if (first === "{") return dictionary(depth);
    const number = match(/[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?/y);
    if (number !== undefined) return numberOf(number.replaceAll("_", ""));
    const name = match(/[\p{L}_]+/uy);
    if (name === undefined || !names.has(name)) return fail("a value is missing");
    return names.get(name);
  }

  function list(open: string, close: string, depth: number): unknown[] {
    expect(open);
    const values: unknown[] = [];
    while (!take(close)) {
      values.push(value(depth + 1));
      if (!take(",")) {
        expect(close);
        break;
      }
    }
    return values;
  }

  function dictionary(depth: number): Record<string, unknown> {
    expect("{");
    const entries: [string, unknown][] = [];
    while (!take("}")) {
      const key = value(depth + 1);
      if (typeof key === "object" && key !== null) fail("a key is not text");
      expect(":");
      entries.push([String(key), value(depth + 1)]);
      if (!take(",")) {
        expect("}");
        break;
      }
    }
    return Object.fromEntries(entries);
  }

  /** Adjacent strings are one. */
  function strings(): string {
    let whole = "";
    while (text.charAt(at) === '"' || text.charAt(at) === "'") {
      whole += string();
      skip();
    }
    return whole;
  }

  function string(): string {
    const quote = text.startsWith('"""', at) || text.startsWith("'''", at) ? text.slice(at, at + 3) : text.charAt(at);
    const parts: string[] = [];
    at += quote.length;
    let from = at;
    while (!text.startsWith(quote, at)) {
      if (at >= text.length) fail("a string is not closed");
      if (text.charAt(at) !== "\\") {
        at++;
        continue;
      }
      parts.push(text.slice(from, at));
      at++;
      const code = match(/x[\da-fA-F]{2}|u[\da-fA-F]{4}|U[\da-fA-F]{8}/y);
      if (code !== undefined) {
        const point = Number.parseInt(code.slice(1), 16);
        if (point > 0x10ffff) fail("a character does not exist");
        parts.push(String.fromCodePoint(point));
      } else {
        const letter = text.charAt(at++);
        // Python keeps the backslash of unknown escapes.
        parts.push(escapes[letter] ?? ("\\'\"".includes(letter) ? letter : `\\${letter}`));
      }
      from = at;
    }
    parts.push(text.slice(from, at));
    at += quote.length;
    return parts.join("");
  }

  return {
    take,
    call,
    value,
    rest: () => text.slice(at, at + 40),
    position: () => at,
    /** Whether a call may begin here. */
    atName() {
      skip();
      return nameStart.test(text.charAt(at));
    },
    atEnd() {
      skip();
      return at >= text.length;
    },
  };
}

const pythonStart = "<|python_start|>";
const pythonEnd = "<|python_end|>";

/** Llama 4: the whole reply is a list of calls, optionally between `<|python_start|>` and `<|python_end|>`. */
export const llama4: CallFormat = {
  starts: ["[", pythonStart],
  read(text) {
    const list = skipPythonCalls(text, 0);
    const first = text.indexOf(pythonStart);
    // A mark inside the strings of a list is text.
    const marked = first >= 0 && !(list.state === "whole" && first < list.end);
    const start = marked ? first + pythonStart.length : 0;
    const skipped = marked ? skipPythonCalls(text, start) : list;
    const closed = text.indexOf(pythonEnd, skipped.state === "whole" ? skipped.end : start);
    const body = text.slice(start, closed < 0 ? undefined : closed).trim();
    // All or nothing, since another list may be the answer itself.
    if (!marked && !/^\[\s*[\p{L}_][\p{L}\p{N}_.-]*\(/u.test(body)) return noCalls(text);
    const found = readPythonCalls(body);
    if (typeof found === "string") return { ...noCalls(text), problems: [malformed(found, text)] };
    const after = closed < 0 ? "" : text.slice(closed + pythonEnd.length);
    const content = (marked ? text.slice(0, first) : "") + after;
    return { ...noCalls(content), calls: found, spans: [[marked ? first : 0, text.length - after.length]] };
  },
};

/** LFM2: `<|tool_call_start|>[add(a=1)]<|tool_call_end|>`. */
export const lfm2: CallFormat = {
  starts: ["<|tool_call_start|>"],
  read: between("<|tool_call_start|>", "<|tool_call_end|>", readPythonCalls, skipPythonCalls),
};

/** OLMo 3: one call per line between `<function_calls>` and `</function_calls>`. */
export const olmo3: CallFormat = {
  starts: ["<function_calls>"],
  read: between("<function_calls>", "</function_calls>", readPythonCalls, skipPythonCalls),
};
