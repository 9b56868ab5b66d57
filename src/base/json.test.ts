import fc from "fast-check";
import { expect, test } from "vitest";
import { itemTexts, memberText, parseJson, skipJson, writtenJson } from "./json.ts";

test("a value is read over to its end, whatever follows it", () => {
  fc.assert(
    fc.property(fc.json(), fc.constantFrom("", " ", "}", "]", "</tool_call>", ', "x"', "{"), (json, rest) => {
      // A digit could belong to the number before it.
      expect(skipJson(`  ${json}${rest}`, 0)).toEqual({ state: "whole", end: json.length + 2 });
    }),
    { numRuns: 500, seed: 3 },
  );
});

test("half a value is cut, and a mistake is found where it is", () => {
  fc.assert(
    fc.property(fc.jsonValue(), fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true }), (value, part) => {
      const json = JSON.stringify({ value });
      expect(skipJson(json.slice(0, 1 + Math.floor(part * (json.length - 1))), 0).state).not.toBe("whole");
    }),
    { numRuns: 500, seed: 3 },
  );
  expect(skipJson('{"a": "</x>" b}', 0)).toEqual({ state: "other", end: 13 });
  expect(skipJson('{"a": "line\nend"}', 0)).toEqual({ state: "other", end: 11 });
  expect(skipJson("[1,]", 0)).toEqual({ state: "other", end: 3 });
  expect(skipJson('{"a', 0)).toEqual({ state: "cut", end: 3 });
});

test("members and items have the text that was written", () => {
  expect(memberText('{"id": "\\"b\\": 1", "a": {"b": 2}, "b" : [1.0, 2e5] }', "b")).toBe("[1.0, 2e5]");
  expect(memberText('{"a": 1, "a": 2}', "a")).toBe("2");
  expect(memberText("{}", "a")).toBeUndefined();
  expect(itemTexts(' [ {"a": "]"} , 1.50, [] ]')).toEqual(['{"a": "]"}', "1.50", "[]"]);
});

test.each([
  ["12345678901234567890", "12345678901234567890"],
  ['{"a": [-9007199254740993, 9007199254740991]}', { a: ["-9007199254740993", 9007199254740991] }],
  ['{"a": "9007199254740993", "b\\"": 1e20}', { a: "9007199254740993", 'b"': 1e20 }],
  ["[1.00000000000000000001, 1e400]", [1, Infinity]],
])("no integer of %s is rounded", (text, value) => {
  expect(parseJson(text)).toEqual(value);
});

test("the text of objects is known if JavaScript would write them differently", () => {
  const value = parseJson('{"plain": {"a": 1}, "b": [{"x": 100.0}, {"404": 1, "1": {"c": 1e-7}}]}') as never as {
    plain: object;
    b: [object, { 1: object }];
  };
  expect(writtenJson(value.b[0])).toBe('{"x": 100.0}');
  expect(writtenJson(value.b[1])).toBe('{"404": 1, "1": {"c": 1e-7}}');
  expect(writtenJson(value.b[1][1])).toBe('{"c": 1e-7}');
  expect(writtenJson(parseJson('{"a": {"b": 1}}') as object)).toBeUndefined();
  fc.assert(
    fc.property(fc.json(), (json) => {
      const text = `{"1.5": {"value": ${json}}}`;
      const { "1.5": inner } = parseJson(text) as { "1.5": object };
      expect(writtenJson(inner)).toBe(`{"value": ${json}}`);
    }),
    { numRuns: 300, seed: 3 },
  );
});
