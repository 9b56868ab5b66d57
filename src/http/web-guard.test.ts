import { expect, test } from "vitest";
import { parseObject } from "./parse-object.ts";
import { isJsonType, webRefusal } from "./web-guard.ts";

test.each([
  ["127.0.0.1:4000", true],
  ["127.1.2.3", true],
  ["localhost:51234", true],
  ["LocalHost", true],
  ["[::1]:4000", true],
  [undefined, true],
  ["evil.com", false],
  ["evil.com:4000", false],
  ["localhost.evil.com", false],
  ["127.0.0.1.nip.io", false],
  ["evil.com#127.0.0.1", false],
  ["192.168.1.5:4000", false],
  ["", false],
])("DNS rebinding: without keys the Host %j is answered: %j", (host, answered) => {
  expect(webRefusal({ host, origin: undefined }, { keyRequired: false }) === undefined).toBe(answered);
  expect(webRefusal({ host, origin: undefined }, { keyRequired: true })).toBeUndefined();
});

test.each(["https://evil.com", "http://localhost:3000", "null"])("web pages of %s are refused", (origin) => {
  for (const keyRequired of [true, false]) {
    expect(webRefusal({ host: "localhost", origin }, { keyRequired })).toMatch(/web pages/);
  }
});

test.each([
  ["application/json", true],
  ["Application/JSON; charset=utf-8", true],
  ["application/problem+json", true],
  ["text/plain", false],
  ["application/x-www-form-urlencoded", false],
  ["text/plain; application/json", false],
  ["application/jsonp", false],
  [undefined, false],
])("%j is JSON: %j", (type, is) => {
  expect(isJsonType(type)).toBe(is);
});

test("a deeply nested body is refused, a long flat one is not", () => {
  const nested = (depth: number) => `${'{"a":'.repeat(depth)}1${"}".repeat(depth)}`;
  expect(() => parseObject(nested(200_000))).toThrow(/nested more than 200 levels/);
  expect(() => parseObject(`{"a":${"[".repeat(300)}${"]".repeat(300)}}`)).toThrow(/nested/);
  expect(parseObject(nested(199))).toHaveProperty("a");
  expect(parseObject(JSON.stringify({ tokens: new Array(200_000).fill(7) })).tokens).toHaveLength(200_000);
  for (const text of ["[]", "null", "3", '"x"']) expect(() => parseObject(text)).toThrow(/not a JSON object/);
  expect(() => parseObject("{")).toThrow(/not valid JSON/);
});
