import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { builtFiles, pages } from "./generated-files.ts";

test.each(Object.entries({ ...pages, ...builtFiles }))("%s is generated", (_name, make) => {
  expect(make().length).toBeGreaterThan(500);
});

/** Before a release. */
test.runIf(process.env.HONE_NIGHTLY).each(Object.entries(pages))(
  "%s is up to date (update it with `npm run docs`)",
  (name, make) => {
    expect(readFileSync(new URL(`../../../${name}`, import.meta.url), "utf8")).toBe(make());
  },
);
