// Slow: each import has its own process.
import { execFile } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import { temporaryFolder } from "../temporary-folder.fixture.ts";

const here = (file: string) => new URL(file, import.meta.url).href;
const root = temporaryFolder("import");

/** Loads a script like the command line, in its own process, because module hooks stay until a process ends. */
const program = `import { importModule } from ${JSON.stringify(here("import-module.ts"))};
import { reportError } from ${JSON.stringify(here("../apps/cli/report-error.ts"))};
try {
  console.log((await importModule(process.argv[1])).default);
} catch (error) {
  process.exitCode = reportError(error);
}`;

/** Writes the files to a new folder, like a user's project, and loads the first one. */
function load(
  name: string,
  files: Readonly<Record<string, string>>,
  loader = program,
): Promise<{ code: number; output: string }> {
  const folder = join(root, name);
  mkdirSync(folder, { recursive: true });
  for (const [file, text] of Object.entries(files)) writeFileSync(join(folder, file), text);
  const script = Object.keys(files)[0]!;
  const args = ["--import", "tsx", "--input-type=module", "-e", loader, join(folder, script)];
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
    ["a CommonJS package.json", { "package.json": '{ "type": "commonjs" }' }],
    ["an ES module package.json", { "package.json": '{ "type": "module" }' }],
  ])("with %s", async (name, more) => {
    const { code, output } = await load(name, { "train.ts": waits, ...more });
    expect([code, output]).toEqual([0, expect.stringContaining("waited")]);
  });
});

test.each<[string, Record<string, string>, string, string]>([
  [
    "an import of a CommonJS file with top-level await",
    { "train.ts": 'import "./side";\nexport default {};', "side.ts": "await null; export {};", "package.json": "{}" },
    "train.ts imports a file that must be an ES module",
    '"type": "module" to the package.json',
  ],
  [
    "an import of a CommonJS file that loads what the script loads",
    {
      "train.ts": 'import base from "./side.ts"; import { train } from "hone-rl"; export default [base, train];',
      "side.ts": 'import { train } from "hone-rl"; export default train;',
      "package.json": "{}",
    },
    "train.ts imports a file that must be an ES module",
    '"type": "module" to the package.json',
  ],
  [
    "a missing package",
    { "train.ts": 'import "hone-is-not-a-package";' },
    "Cannot find package 'hone-is-not-a-package'",
    "npm install hone-is-not-a-package",
  ],
  ["a missing file", { "train.ts": 'import "./none.ts";' }, "Cannot find module", "relative to the file"],
  ["a syntax error", { "train.ts": "export default = 1" }, "train.ts could not be loaded", 'Unexpected "="'],
  [
    "a string that is thrown",
    { "train.ts": 'throw "boom";' },
    "threw a value that is not an Error: boom",
    "throw an Error",
  ],
  [
    "a top-level await that never settles",
    { "train.ts": "await new Promise(() => {});" },
    "train.ts awaits a promise at its top level that never settles",
    "never resolved",
  ],
  [
    "a wrong name in an import",
    { "train.ts": 'import { defineExperimnt } from "hone-rl";\nexport default defineExperimnt({});' },
    "does not provide an export named 'defineExperimnt'",
    "did you mean defineExperiment?",
  ],
  [
    "the package's former name",
    { "train.ts": 'import { defineExperiment } from "hone";\nexport default defineExperiment({});' },
    "Cannot find package 'hone'",
    "Hone's package is named hone-rl",
  ],
  [
    "the former name of a subpath",
    { "train.ts": 'import { lines } from "hone/testing";\nexport default lines;' },
    "Cannot find package 'hone'",
    "Hone's package is named hone-rl",
  ],
  [
    "a wrong name in an import from the user's own file",
    { "train.ts": 'import { other } from "./side.mjs";\nexport default other;', "side.mjs": "export {};" },
    "does not provide an export named 'other'",
    "train.ts:1",
  ],
  [
    "code that throws",
    { "train.ts": "const rows: any = undefined;\nrows.map(String);" },
    "train.ts could not be loaded: TypeError",
    "train.ts:2:",
  ],
])("%s is reported as the user's mistake", async (name, files, message, help) => {
  const { code, output } = await load(name, files);
  expect([code, output]).toEqual([2, expect.stringContaining(message)]);
  expect(output).toContain(help);
  expect(output).not.toContain("bug in Hone");
});

test("Deno, which runs TypeScript itself, loads a script without tsx and module hooks", async () => {
  const asDeno = `import nodeModule from "node:module";
Object.defineProperty(process.versions, "deno", { value: "2.9.6" });
nodeModule.register = nodeModule.registerHooks = () => { throw new Error("a hook was registered"); };
${program}`;
  const { code, output } = await load("deno", { "train.ts": waits, "package.json": '{ "type": "module" }' }, asDeno);
  expect([code, output]).toEqual([0, "waited\n"]);
});

test("a script that finds somebody else's package hone is told the name of Hone's", async () => {
  const name = "strangers-package";
  const folder = join(root, name, "node_modules", "hone");
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, "package.json"), JSON.stringify({ name: "hone", type: "module", exports: "./index.js" }));
  writeFileSync(join(folder, "index.js"), "export {};");
  for (const path of ["hone", "hone/testing"]) {
    const { code, output } = await load(name, {
      "train.ts": `import { lines } from "${path}";\nexport default lines;`,
    });
    expect([code, output]).toEqual([2, expect.stringContaining("Hone's package is named hone-rl")]);
  }
});

test("a script imports the copy of hone that loads it", async () => {
  const { code, output } = await load("one-copy", {
    "train.ts": `import { UserError } from "hone-rl";
import { tabularEngine } from "hone-rl/testing";
tabularEngine({ alphabet: "ab" });
throw new UserError("mine", { hint: "yours" });`,
  });
  expect([code, output]).toEqual([2, expect.stringContaining("mine")]);
  expect(output).toContain("yours");
  expect(output).not.toContain("could not be loaded");
});
