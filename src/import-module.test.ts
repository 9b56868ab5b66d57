import { execFile } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import { temporaryFolder } from "./temporary-folder.fixture.ts";

const here = (file: string) => new URL(file, import.meta.url).href;
const root = temporaryFolder("import");

/** What the command line does with a script, in a process of its own: hooks stay for as long as one lives. */
const program = `import { importModule } from ${JSON.stringify(here("import-module.ts"))};
import { reportError } from ${JSON.stringify(here("cli/report-error.ts"))};
try {
  console.log((await importModule(process.argv[1])).default);
} catch (error) {
  process.exitCode = reportError(error);
}`;

/** Loads the first of these files, which lie in a folder of their own as a user's project has them. */
function load(name: string, files: Readonly<Record<string, string>>): Promise<{ code: number; output: string }> {
  const folder = join(root, name);
  mkdirSync(folder);
  for (const [file, text] of Object.entries(files)) writeFileSync(join(folder, file), text);
  const script = Object.keys(files)[0]!;
  const args = ["--import", "tsx", "--input-type=module", "-e", program, join(folder, script)];
  return new Promise((resolve) => {
    execFile(process.execPath, args, { cwd: fileURLToPath(here("..")) }, (error, output, errors) => {
      resolve({ code: typeof error?.code === "number" ? error.code : 0, output: output + errors });
    });
  });
}

const waits = `import { setTimeout } from "node:timers/promises";
export default await setTimeout<string>(1, "waited");`;

describe("a script may await at its top level", () => {
  test.each([
    ["no package.json", {}],
    ["one that npm made", { "package.json": '{ "type": "commonjs" }' }],
    ["one of modules", { "package.json": '{ "type": "module" }' }],
  ])("beside %s", async (name, more) => {
    const { code, output } = await load(name, { "train.ts": waits, ...more });
    expect([code, output]).toEqual([0, expect.stringContaining("waited")]);
  });
});

test.each<[string, Record<string, string>, string, string]>([
  [
    "an import that waits although it is no module",
    { "train.ts": 'import "./side";\nexport default {};', "side.ts": "await null; export {};", "package.json": "{}" },
    "train.ts imports a file that awaits at its top level but is not an ES module",
    '"type": "module" to the package.json',
  ],
  [
    "a package that is not there",
    { "train.ts": 'import "hone-is-not-a-package";' },
    "Cannot find package 'hone-is-not-a-package'",
    "npm install hone-is-not-a-package",
  ],
  ["a file that is not there", { "train.ts": 'import "./none.ts";' }, "Cannot find module", "relative to the file"],
  ["words that are no program", { "train.ts": "export default = 1" }, "train.ts could not be loaded", 'Unexpected "="'],
  [
    "a string that is thrown",
    { "train.ts": 'throw "boom";' },
    "threw a value that is not an Error: boom",
    "throw an Error",
  ],
  [
    "a wait at the top level that never ends",
    { "train.ts": "await new Promise(() => {});" },
    "train.ts awaits a promise at its top level that never settles",
    "never resolved",
  ],
  [
    "a wrong name in an import",
    { "train.ts": 'import { defineExperimnt } from "hone";\nexport default defineExperimnt({});' },
    "does not provide an export named 'defineExperimnt'",
    "did you mean defineExperiment?",
  ],
  [
    "a wrong name in an import of its own",
    { "train.ts": 'import { other } from "./side.mjs";\nexport default other;', "side.mjs": "export {};" },
    "does not provide an export named 'other'",
    "train.ts:1",
  ],
  [
    "a program that fails",
    { "train.ts": "const rows: any = undefined;\nrows.map(String);" },
    "train.ts could not be loaded: TypeError",
    "train.ts:2:",
  ],
])("%s is told as the user's own mistake", async (name, files, message, help) => {
  const { code, output } = await load(name, files);
  expect([code, output]).toEqual([2, expect.stringContaining(message)]);
  expect(output).toContain(help);
  expect(output).not.toContain("bug in Hone");
});

test("a script imports the copy of hone that loads it", async () => {
  const { code, output } = await load("one-copy", {
    "train.ts": `import { UserError } from "hone";
import { tabularEngine } from "hone/testing";
tabularEngine({ alphabet: "ab" });
throw new UserError("mine", { hint: "yours" });`,
  });
  expect([code, output]).toEqual([2, expect.stringContaining("mine")]);
  expect(output).toContain("yours");
  expect(output).not.toContain("could not be loaded");
});
