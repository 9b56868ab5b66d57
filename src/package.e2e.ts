/** The published package, installed in an empty project. */
import { execFileSync, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { beforeAll, describe, expect, it } from "vitest";
import { temporaryFolder } from "./temporary-folder.fixture.ts";

const checkout = fileURLToPath(new URL("..", import.meta.url));
const root = temporaryFolder("package");
const project = join(root, "project");
const installed = join(project, "node_modules", "hone-rl");
const tsc = join(checkout, "node_modules", "typescript", "bin", "tsc");
let packed: string[];

const run = (command: string, args: string[], cwd: string) =>
  execFileSync(command, args, { cwd, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });

/** Packs a copy of the checkout, which builds it, and unpacks it into the project. Its dependencies are linked, not downloaded. */
beforeAll(() => {
  const copy = join(root, "checkout");
  const left = new Set(["node_modules", "dist", ".git", ".hone", "runs"]);
  mkdirSync(copy);
  const filter = (path: string) => basename(path) !== "node_modules";
  for (const name of readdirSync(checkout)) {
    if (!left.has(name)) cpSync(join(checkout, name), join(copy, name), { recursive: true, filter });
  }
  symlinkSync(join(checkout, "node_modules"), join(copy, "node_modules"));
  const printed = run("npm", ["pack", "--json", "--offline"], copy);
  const [report] = JSON.parse(printed.slice(printed.indexOf("[")));
  packed = report.files.map(({ path }: { path: string }) => path);
  mkdirSync(installed, { recursive: true });
  run("tar", ["-xzf", join(copy, report.filename), "-C", installed, "--strip-components=1"], root);
  const { dependencies } = JSON.parse(readFileSync(join(installed, "package.json"), "utf8"));
  for (const name of [...Object.keys(dependencies), "@types/node"]) {
    const link = join(project, "node_modules", name);
    mkdirSync(dirname(link), { recursive: true });
    symlinkSync(join(checkout, "node_modules", name), link);
  }
  writeFileSync(join(project, "package.json"), JSON.stringify({ name: "project", type: "module" }));
});

/** Trains a table of logits. @param parameter has a type in TypeScript */
const program = (folder: string, parameter: string) => `import { generated, singleTurn, train } from "hone-rl";
import { tabularEngine } from "hone-rl/testing";
const engine = tabularEngine({ alphabet: "abc" });
const experiment = {
  train: generated("letters", 8, (${parameter}) => ({ index })),
  workflow: singleTurn({ prompt: () => "b", reward: (_row, reply) => Number(reply.text.startsWith("a")) }),
  config: {
    model: { lora_rank: 0 },
    rllm: { rollout: { n: 2 }, trainer: { total_batches: 2, logger: [], run_dir: "${folder}" } },
    data: { train_batch_size: 2, max_response_length: 4 },
  },
};
const { step } = await train(experiment, { engine: { engine, chat: engine.chat } });
console.log("trained", step);
`;

describe("the package", () => {
  it("contains what a project needs, and no tests, fixtures, proofs or sources", () => {
    const unneeded = packed.filter((path) =>
      /(\.(map|test|e2e|fixture)\b|(^|\/)(tests?|conformance|proofs|maintain|bench|src)\/)/.test(path),
    );
    expect(unneeded).toEqual([]);
    expect(packed).toEqual(
      expect.arrayContaining([
        ...["LICENSE", "README.md", "bin/hone.js", "dist/index.js", "dist/index.d.ts", "dist/testing/index.js"],
        ...["dist/web/index.html", "dist/web/page.js", "dist/web/page.css", "dist/web/licenses.md"],
        ...["config/unified.yaml", "config/rllm/base.yaml", "config/hone.schema.json", "llms.txt"],
        ...["scripts/setup.mjs", "scripts/setup/python.mjs"],
        ...["worker/hone_worker/__main__.py", "worker/requirements.lock", "worker/sandbox/launch.py"],
        ...["docs/guide/agents.md", "docs/reference/README.md", "examples/larger-number/train.ts"],
      ]),
    );
    expect(readFileSync(join(installed, "LICENSE"), "utf8")).toContain("Apache License");
  });

  it("contains the files that its pages link to", () => {
    const files = new Set(packed);
    const pages = packed.filter((path) => path.endsWith(".md"));
    const broken = pages.flatMap((page) => {
      const links = readFileSync(join(installed, page), "utf8").matchAll(/\]\((?!https?:|#|mailto:)([^)#\s]+)/g);
      return [...links]
        .map(([, link]) => join(dirname(page), link!))
        .filter((path) => !files.has(path) && !packed.some((file) => file.startsWith(`${path.replace(/\/$/, "")}/`)))
        .map((path) => `${page}: ${path}`);
    });
    expect(broken).toEqual([]);
  });

  it("runs the command line, and trains from JavaScript without Python", () => {
    const { version } = JSON.parse(readFileSync(join(installed, "package.json"), "utf8"));
    const hone = join(installed, "bin", "hone.js");
    expect(run(process.execPath, [hone, "--version"], project).trim()).toBe(version);
    expect(run(process.execPath, [hone, "config", "training.learning_rate=1e-4"], project)).toContain("learning_rate");
    writeFileSync(join(project, "train.js"), program("run-js", "index"));
    expect(run(process.execPath, ["train.js"], project)).toContain("trained 2");
  });

  it("finds no Python on a machine that has none", () => {
    const home = pathToFileURL(join(installed, "scripts", "setup", "home.mjs")).href;
    const script = `console.log((await import("${home}")).installedPython("python"))`;
    const env = { ...process.env, HONE_HOME: join(root, "empty-home") };
    const args = ["--input-type=module", "-e", script];
    expect(execFileSync(process.execPath, args, { cwd: project, encoding: "utf8", env })).toBe("undefined\n");
  });

  it("says that the limit of open files is too low, without a stack", () => {
    const hone = `ulimit -n 40; exec "${process.execPath}" "${join(installed, "bin", "hone.js")}" config`;
    const { status, stderr } = spawnSync("bash", ["-c", hone], { cwd: project, encoding: "utf8" });
    expect([status, stderr]).toEqual([
      2,
      "hone: too few files may be open\n  fix: raise the limit of this shell, e.g. ulimit -n 1024\n",
    ]);
  });

  it("loads an experiment in TypeScript through the command line, with no build step", () => {
    const example = join(installed, "examples", "larger-number", "train.ts");
    const printed = run(process.execPath, [join(installed, "bin", "hone.js"), "train", example, "--dry-run"], project);
    expect(printed).toContain("learning_rate");
  });

  it.each(["nodenext", "bundler"])(
    "has correct types and trains from TypeScript with moduleResolution %s",
    (resolution) => {
      const file = (name: string, answer: string) =>
        writeFileSync(
          join(project, name),
          `import { defineExperiment, firstInteger, fromRows, singleTurn, type Workflow } from "hone-rl";
import { scriptedSampler } from "hone-rl/testing";
const rows = fromRows("sums", [{ question: "2+2", answer: 4 }]);
const workflow: Workflow<{ question: string; answer: number }> = singleTurn({
  prompt: (row) => row.question,
  reward: (row, reply) => firstInteger(reply.text, row.${answer}),
});
export default defineExperiment({ train: rows, workflow });
export const { chat } = scriptedSampler(() => "4");
`,
        );
      file("right.ts", "answer");
      file("wrong.ts", "question");
      const module = resolution === "bundler" ? "esnext" : "nodenext";
      const flags = [
        "--noEmit",
        "--strict",
        "--target",
        "es2023",
        "--module",
        module,
        "--moduleResolution",
        resolution,
      ];
      const args = [tsc, ...flags, "--types", "node", "right.ts", "wrong.ts"];
      const { stdout } = spawnSync(process.execPath, args, { cwd: project, encoding: "utf8" });
      expect(stdout.match(/^\S+\.ts/gm)).toEqual(["wrong.ts"]);
      writeFileSync(join(project, "train.ts"), program(`run-${resolution}`, "index: number"));
      run(process.execPath, [tsc, ...flags, "--noEmit", "false", "--outDir", resolution, "train.ts"], project);
      expect(run(process.execPath, [`${resolution}/train.js`], project)).toContain("trained 2");
    },
  );
});

describe("npm create hone-rl", () => {
  const create = join(checkout, "create-hone-rl", "index.mjs");
  const created = (template: string, ...more: string[]) =>
    spawnSync(process.execPath, [create, template, "--template", template, "--hone", "file:../hone-rl.tgz", ...more], {
      cwd: project,
      encoding: "utf8",
    });

  it.each(["one-reply", "ai-sdk-agent", "agent-server", "openai-rft"])(
    "the starter %s compiles, passes its test of the agent without a model, and has settings that fit together",
    (template) => {
      for (const name of ["vitest", "vite", "ai", "@ai-sdk/openai-compatible", "zod"]) {
        const link = join(project, "node_modules", name);
        mkdirSync(dirname(link), { recursive: true });
        if (!existsSync(link)) symlinkSync(join(checkout, "node_modules", name), link);
      }
      const { status, stdout, stderr } = created(template);
      expect([status, stderr]).toEqual([0, ""]);
      expect(stdout).toContain("npm run first");
      const folder = join(project, template);
      const { name, dependencies, scripts } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
      expect([name, dependencies["hone-rl"], scripts.train]).toEqual([
        template,
        "file:../hone-rl.tgz",
        "hone train ./train.ts",
      ]);
      for (const file of [".gitignore", "AGENTS.md", "README.md", "pnpm-workspace.yaml"]) {
        expect(readFileSync(join(folder, file), "utf8")).not.toContain("{{name}}");
      }
      run(process.execPath, [tsc], folder);
      const vitest = join(checkout, "node_modules", "vitest", "vitest.mjs");
      expect(run(process.execPath, [vitest, "run"], folder)).toMatch(/Tests .*passed/);
      const hone = join(installed, "bin", "hone.js");
      expect(run(process.execPath, [hone, "train", "./train.ts", "--dry-run"], folder)).toContain("train_batch_size");
    },
  );

  it("refuses a folder with files, and an unknown template", () => {
    expect(created("one-reply")).toMatchObject({ status: 2, stderr: expect.stringContaining("is not empty") });
    const wrong = created("new-folder", "--template", "none");
    expect(wrong).toMatchObject({ status: 2, stderr: expect.stringContaining("there are one-reply, ai-sdk-agent") });
    const misspelled = created("new-folder", "--tempate", "none").stderr;
    expect(misspelled).toMatch(/^error: Unknown option '--tempate'\n\nnpm create hone-rl FOLDER/);
  });

  it("asks again after a wrong answer, and ends quietly on Ctrl-C", async () => {
    const folder = join(root, "asked");
    mkdirSync(folder);
    /** Types each answer after a question. */
    const answering = async (...answers: string[]) => {
      const args = ["-qec", `"${process.execPath}" "${create}"`, "/dev/null"];
      const child = spawn("script", args, { cwd: folder, stdio: ["pipe", "pipe", "inherit"] });
      let printed = "";
      child.stdout.setEncoding("utf8").on("data", (text: string) => {
        printed += text;
        if (/\((my-agent|1)\) \S*$/.test(text)) child.stdin.write(answers.shift() ?? "\x04");
      });
      const [status] = await once(child, "close");
      return { status, printed };
    };
    const stopped = await answering("mine\r", "\x03");
    expect(stopped).toEqual({ status: 130, printed: expect.not.stringContaining("Error") });
    expect(existsSync(join(folder, "mine"))).toBe(false);
    const asked = await answering("mine\r", "none\r", "4\r");
    expect(asked).toEqual({ status: 0, printed: expect.stringContaining("Answer with a number from 1 to 4") });
    expect(existsSync(join(folder, "mine", "job.json"))).toBe(true);
  });

  it("is a package with its templates", () => {
    const [{ files }] = JSON.parse(run("npm", ["pack", "--dry-run", "--json"], dirname(create)));
    const names = files.map(({ path }: { path: string }) => path);
    expect(names).toEqual(
      expect.arrayContaining(["index.mjs", "templates/shared/gitignore", "templates/openai-rft/train.jsonl"]),
    );
  });
});
