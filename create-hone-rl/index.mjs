#!/usr/bin/env node
/**
 * `npm create hone-rl my-agent -- --template ai-sdk-agent`: writes a project that trains. It has no dependencies and
 * installs nothing.
 *   --template NAME   one of the folders in templates/; asked for on a terminal, else one-reply
 *   --hone SPEC       the hone-rl to depend on: a version, or file:... of `npm pack`
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

const folderOf = (/** @type {string} */ name) => fileURLToPath(new URL(`templates/${name}`, import.meta.url));

/** @param {string} text @returns {never} */
function fail(text) {
  console.error(`error: ${text}`);
  process.exit(2);
}

/** @param {string} question @param {string} fallback */
async function ask(question, fallback) {
  if (!process.stdin.isTTY || !process.stdout.isTTY) return fallback;
  const terminal = createInterface({ input: process.stdin, output: process.stdout });
  const answer = (await terminal.question(question)).trim();
  terminal.close();
  return answer || fallback;
}

async function chooseTemplate() {
  const names = Object.keys(templates);
  const list = Object.entries(templates).map(([name, text], index) => `  ${index + 1}. ${name}: ${text}`);
  const answer = await ask(`${list.join("\n")}\nWhich one? (1) `, "1");
  return names[Number(answer) - 1] ?? answer;
}

/** Names that npm does not pack, or reads itself. @type {Readonly<Record<string, string>>} */
const renamed = { gitignore: ".gitignore", "package.template.json": "package.json" };

/** @param {string} from @param {string} to @param {(text: string) => string} fill */
function copy(from, to, fill) {
  for (const name of readdirSync(from)) {
    writeFileSync(join(to, renamed[name] ?? name), fill(readFileSync(join(from, name), "utf8")));
  }
}

/** @returns {{ values: { template?: string, hone?: string }, positionals: string[] }} */
function readArguments() {
  try {
    const options = { template: { type: "string" }, hone: { type: "string" } };
    return /** @type {any} */ (parseArgs({ allowPositionals: true, options: /** @type {any} */ (options) }));
  } catch (error) {
    return fail(/** @type {Error} */ (error).message);
  }
}

const { values, positionals } = readArguments();
const { version } = JSON.parse(readFileSync(new URL("package.json", import.meta.url), "utf8"));
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
console.log(`${given} written: ${templates[/** @type {keyof typeof templates} */ (template)]}.

  cd ${given}
  ${manager} install
  ${manager} test            the agent and its reward, without a model
  ${manager} run first       a first training on this machine's CPU
  ${manager} run score -- --model openai:gpt-5-mini    is the reward any good?

README.md says what to change first.`);
