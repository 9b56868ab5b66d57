/** Every block of TypeScript in a document compiles, with the types that a reader's editor would see. */
// Slow: compiles all programs of the documents.
import { spawnSync } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { removeFolder } from "../../../src/temporary-folder.fixture.ts";
import { packageRoot } from "../../setup/paths.mjs";
import { blocksOf, documents } from "./documents.ts";

/** The names that the documents import from a file of the reader. */
const readersOwn = `import { fromRows, type Workflow } from "hone-rl";
export const train = fromRows("sums", [{ question: "What is 2 + 2?", answer: 4 }]);
export declare const workflow: Workflow<{ question: string; answer: number }>;
`;

/** What a block that is not a whole program takes for granted: imports, and names that the text around it explains. */
const taken = `import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, type ToolSet } from "ai";
import { type ChatMessage, codeTests, defineExperiment, fromRows, type Reply, type Workflow } from "hone-rl";
import { container, containerSandbox } from "hone-rl/containers";
import { harbor } from "hone-rl/harbor";
declare const tools: ToolSet;
declare const reply: Reply;
declare const tests: Parameters<typeof codeTests>[1];
declare function prompt(row: { answer: string }): ChatMessage[];
void [createOpenAICompatible, generateText, stepCountIs, defineExperiment, fromRows, container, harbor, tools, prompt];
void [codeTests, containerSandbox, reply, tests];
type Row = { question: string; answer: string };
`;

/** A whole program begins with an import or a comment before it. Other blocks are properties of an experiment, or statements. */
function programOf(code: string): string {
  if (/^(\/\/.*\n)*import /.test(code)) return code;
  if (/^\w+:/.test(code)) {
    const train = 'fromRows("rows", [{ question: "", answer: "" }])';
    return `${taken}export default defineExperiment<Row>({ train: ${train},\n${code}});\n`;
  }
  return `${taken}${code.replace(/^const workflow = /m, "export const workflow: Workflow<Row> = ")}\nexport {};\n`;
}

test("the blocks of TypeScript compile", () => {
  // Inside the package, so that imports are resolved as in a project that depends on it.
  const folder = join(packageRoot, ".hone", `snippets-${process.pid}`);
  mkdirSync(folder, { recursive: true });
  try {
    const blocks = documents.flatMap(blocksOf).filter(({ language }) => ["ts", "tsx", "typescript"].includes(language));
    expect(blocks.length).toBeGreaterThanOrEqual(25);
    for (const { place, code } of blocks) {
      writeFileSync(join(folder, `${place.replaceAll(/[/:]/g, "_")}.ts`), programOf(code));
    }
    writeFileSync(join(folder, "agent.ts"), readersOwn);
    const options = { extends: "../../tsconfig.json", compilerOptions: { rootDir: "../.." }, include: ["*.ts"] };
    writeFileSync(join(folder, "tsconfig.json"), JSON.stringify(options));
    const tsc = join(packageRoot, "node_modules/typescript/bin/tsc");
    const { stdout } = spawnSync(process.execPath, [tsc, "-p", folder], { encoding: "utf8" });
    expect(stdout).toBe("");
  } finally {
    removeFolder(folder);
  }
}, 60_000);
