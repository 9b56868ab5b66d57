import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { generatedFiles } from "./generated-files.ts";

test.each(Object.entries(generatedFiles))("%s matches the schema (update it with `npm run docs`)", (name, make) => {
  expect(readFileSync(new URL(`../../../${name}`, import.meta.url), "utf8")).toBe(make());
});
