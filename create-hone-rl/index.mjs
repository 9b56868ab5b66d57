#!/usr/bin/env node
/**
 * `npm create hone-rl my-agent -- --template ai-sdk-agent`: writes a project that trains. It has no dependencies and
 * installs nothing. Without --template it asks on a terminal, else writes one-reply.
 */
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { basename, join, resolve } from "node:path";
import { createInterface } from "node:readline/promises";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const templates = {
  "one-reply": "one reply and a reward",
  "ai-sdk-agent": "an agent of the AI SDK with tools",
  "agent-server": "an agent that runs as its own server",
  "openai-rft": "a job of OpenAI's reinforcement fine-tuning",
};

const usage = `npm create hone-rl FOLDER -- --template NAME

${Object.entries(templates)
  .map(([name, text]) => `  ${name.padEnd(14)}${text}`)
  .join("\n")}

  --hone SPEC   the hone-rl to depend on: a version, or file:... of npm pack`;

const folderOf = (/** @type {string} */ name) => fileURLToPath(new URL(`templates/${name}`, import.meta.url));

/** @param {string} text @returns {never} */
function fail(text) {
  console.error(`error: ${text}`);
  process.exit(2);
}

const isTerminal = process.stdin.isTTY && process.stdout.isTTY;

/** @param {string} question @param {string} fallback */
async function ask(question, fallback) {
  if (!isTerminal) return fallback;
  const terminal = createInterface({ input: process.stdin, output: process.stdout });
  // Ctrl-C and Ctrl-D close it.
  const stop = () => {
    console.log();
    process.exit(130);
  };
  terminal.once("close", stop);
  const answer = (await terminal.question(question)).trim();
  terminal.off("close", stop);
  terminal.close();
  return answer || fallback;
}

/** @returns {Promise<string>} */
async function chooseTemplate() {
  const names = Object.keys(templates);
  const list = Object.entries(templates).map(([name, text], index) => `  ${index + 1}. ${name}: ${text}`);
  if (isTerminal) console.log(list.join("\n"));
  for (;;) {
    const answer = await ask("Which one? (1) ", "1");
    const name = names[Number(answer) - 1] ?? answer;
    if (names.includes(name)) return name;
    console.log(`Answer with a number from 1 to ${names.length}, or a name.`);
  }
}

/** Names that npm does not pack, or reads itself. @type {Readonly<Record<string, string>>} */
const renamed = { gitignore: ".gitignore", "package.template.json": "package.json" };

/** @param {string} from @param {string} to @param {(text: string) => string} fill */
function copy(from, to, fill) {
  for (const name of readdirSync(from)) {
    writeFileSync(join(to, renamed[name] ?? name), fill(readFileSync(join(from, name), "utf8")));
  }
}

/** @returns {{ values: { template?: string, hone?: string, help?: boolean }, positionals: string[] }} */
function readArguments() {
  try {
    const options = { template: { type: "string" }, hone: { type: "string" }, help: { type: "boolean", short: "h" } };
    return /** @type {any} */ (parseArgs({ allowPositionals: true, options: /** @type {any} */ (options) }));
  } catch (error) {
    return fail(`${/** @type {Error} */ (error).message.split(". ")[0]}\n\n${usage}`);
  }
}

const { values, positionals } = readArguments();
const { version } = JSON.parse(readFileSync(new URL("package.json", import.meta.url), "utf8"));
if (values.help) {
  console.log(usage);
  process.exit();
}
if (positionals.length > 1) fail(`expected one folder, got ${positionals.join(" ")}`);
const given = positionals[0] ?? (await ask("Folder? (my-agent) ", "my-agent"));
const folder = resolve(given);
if (existsSync(folder) && readdirSync(folder).length > 0) fail(`${given} is not empty; name a new folder`);
const template = values.template ?? (await chooseTemplate());
if (!Object.hasOwn(templates, template))
  fail(`the template ${template} does not exist; there are ${Object.keys(templates).join(", ")}`);

const project =
  basename(folder)
    .toLowerCase()
    .replace(/[^a-z0-9._-]+/g, "-")
    .replace(/^[._-]+/, "") || "my-agent";
const fill = (/** @type {string} */ text) =>
  text.replaceAll("{{name}}", project).replaceAll("{{hone}}", values.hone ?? `^${version}`);
mkdirSync(folder, { recursive: true });
copy(folderOf("shared"), folder, fill);
copy(folderOf(template), folder, fill);

const manager = /^(pnpm|yarn|bun)\//.exec(process.env.npm_config_user_agent ?? "")?.[1] ?? "npm";
// Bun's `test` is not the script, and only npm needs `--` to pass arguments on.
const test = manager === "bun" ? "run test" : "test";
const score = `run score ${manager === "npm" ? "-- " : ""}--model openai:gpt-5-mini`;
const { engines } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
const needed = /^>=(\d+)/.exec(engines.node)?.[1];
const isOld = Number(process.versions.node.split(".")[0]) < Number(needed);
const steps = [
  ["install", ""],
  [test, "the agent and its reward, without a model"],
  ["run first", "a first training on this machine's CPU"],
  ["run view", "its reward and replies, in the browser"],
  [score, "is the reward any good?"],
];
console.log(`${given} written: ${templates[/** @type {keyof typeof templates} */ (template)]}.
${isOld ? `\nIt needs Node ${needed} or newer; this is ${process.version}.\n` : ""}
  cd ${given}
${steps.map(([step, text]) => `  ${`${manager} ${step}`.padEnd(44)}${text}`.trimEnd()).join("\n")}

README.md says what to change first, and how to serve the trained model.`);
