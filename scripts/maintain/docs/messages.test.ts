/** Every message that the page on troubleshooting explains exists in the sources. */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { packageRoot } from "../../setup/paths.mjs";
import { readDocument } from "./site-map.ts";

const sources = [
  ["src", /(?<!\.(test|e2e|fixture))\.ts$/],
  ["bin", /\.js$/],
  ["scripts/setup", /\.mjs$/],
  ["worker/hone_worker", /\.py$/],
] as const;

/** Each source file as one text in which strings that are divided over lines are whole. */
const texts = sources.flatMap(([folder, pattern]) =>
  readdirSync(join(packageRoot, folder), { recursive: true, encoding: "utf8" })
    .filter((name) => pattern.test(name))
    .map((name) => readFileSync(join(packageRoot, folder, name), "utf8"))
    .map((text) => text.replaceAll(/["'`]\s*\+?\s*\n\s*f?["'`]/g, "").replaceAll('\\"', '"')),
);

const messages = [...readDocument("docs/guide/troubleshooting.md").matchAll(/^### `(.+)`$/gm)].map(
  ([, message = ""]) => message,
);

/** What is fixed in a message. */
const partsOf = (message: string) =>
  message
    .split("...")
    .map((part) => part.trim())
    .filter((part) => /\w{2}/.test(part));

test("the page explains messages", () => expect(messages.length).toBeGreaterThan(40));

test.each(messages)("%s", (message) => {
  const parts = /^warning\[(\w+)\]$/.test(message) ? [message.slice(8, -1)] : partsOf(message);
  expect(parts.length).toBeGreaterThan(0);
  const found = texts.some((text) => {
    // In order, so that they are parts of one message.
    let from = 0;
    return parts.every((part) => {
      const at = text.indexOf(part, from);
      from = at + part.length;
      return at !== -1;
    });
  });
  expect(found, `no source has "${parts.join('" ... "')}"`).toBe(true);
});
