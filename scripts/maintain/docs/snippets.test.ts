/** Every program that a document shows compiles, with the types that a reader's editor would see. */
// Slow: compiles all programs of the documents.
import { spawnSync } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { expect, test } from "vitest";
import { removeFolder } from "../../../src/temporary-folder.fixture.ts";
import { packageRoot } from "../../setup/paths.mjs";

/** The names that the documents import from a file of the reader. */
const readersOwn = `import { fromRows, type Workflow } from "hone-rl";
export const train = fromRows("sums", [{ question: "What is 2 + 2?", answer: 4 }]);
export declare const workflow: Workflow<{ question: string; answer: number }>;
`;

const documents = [
  "README.md",
  ...readdirSync(join(packageRoot, "docs/guide"))
    .filter((name) => name.endsWith(".md"))
    .map((name) => `docs/guide/${name}`),
  ...readdirSync(join(packageRoot, "examples")).map((name) => `examples/${name}/README.md`),
];

/** The blocks that are whole programs: those that begin with an import. */
const programsOf = (document: string): string[] =>
  [...readFileSync(join(packageRoot, document), "utf8").matchAll(/^```ts\n(import [\s\S]*?)^```$/gm)].map(
    ([, code]) => code!,
  );

test("the programs of the documents compile", () => {
  // Inside the package, so that imports are resolved as in a project that depends on it.
  const folder = join(packageRoot, ".hone", `snippets-${process.pid}`);
  mkdirSync(folder, { recursive: true });
  try {
    const programs = documents.flatMap((document) =>
      programsOf(document).map((code, index) => ({ name: `${document.replaceAll("/", "_")}.${index}.ts`, code })),
    );
    expect(programs.length).toBeGreaterThanOrEqual(5);
    for (const { name, code } of [...programs, { name: "agent.ts", code: readersOwn }]) {
      writeFileSync(join(folder, basename(name)), code);
    }
    const options = { extends: "../../tsconfig.json", compilerOptions: { rootDir: "../.." }, include: ["*.ts"] };
    writeFileSync(join(folder, "tsconfig.json"), JSON.stringify(options));
    const tsc = join(packageRoot, "node_modules/typescript/bin/tsc");
    const { stdout } = spawnSync(process.execPath, [tsc, "-p", folder], { encoding: "utf8" });
    expect(stdout).toBe("");
  } finally {
    removeFolder(folder);
  }
}, 60_000);
