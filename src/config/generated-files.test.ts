import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { generatedFiles } from "./generated-files.ts";

test.each(Object.entries(generatedFiles))("%s is what the schema says; `npm run docs` writes it anew", (name, make) => {
  expect(readFileSync(new URL(`../../${name}`, import.meta.url), "utf8")).toBe(make());
});
