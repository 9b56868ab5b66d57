import { expect, test } from "vitest";
import { RunError } from "./errors.ts";
import { maskUrls } from "./mask-urls.ts";
import { printable } from "./printable.ts";

test.each([
  ["http://user:secret@host:80/path?q=a@b", "http://***@host:80/path?q=a@b"],
  ["https://secret@host answered 500", "https://***@host answered 500"],
  ['"http://a:p@ss@host"', '"http://***@host"'],
  ["two: http://a:b@x/ and ftp://c:d@y", "two: http://***@x/ and ftp://***@y"],
  ["http://host/@name and a@b.c", "http://host/@name and a@b.c"],
  ["http://[::1]:80/", "http://[::1]:80/"],
])("masks the login in %s", (text, masked) => {
  expect(maskUrls(text)).toBe(masked);
  expect(maskUrls(masked)).toBe(masked);
  expect(printable(text)).toBe(masked);
});

test("no error contains a login", () => {
  const url = "http://user:secret@host";
  const { message, hint, details } = new RunError(`${url} failed`, { hint: `use ${url}`, details: url });
  expect(`${message} ${hint} ${details}`).not.toContain("secret");
});

test("takes linear time", () => {
  const text = `http://${"@a".repeat(50_000)} ://${":".repeat(50_000)}`;
  expect(maskUrls(text)).toContain("http://***@a");
});
