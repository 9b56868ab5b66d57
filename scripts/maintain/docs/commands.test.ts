/** Every command of `hone` that a document shows is one, with its flags and settings; every block of YAML is a configuration. */
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { type Command, CommanderError } from "commander";
import { describe, expect, test } from "vitest";
import { program } from "../../../src/apps/cli/main.ts";
import { UserError } from "../../../src/base/errors.ts";
import { composeConfig } from "../../../src/config/compose.ts";
import { readLightRft } from "../../../src/config/lightrft/compose.ts";
import { configKeys, configSections } from "../../../src/config/schema.ts";
import { testFolder } from "../../../src/temporary-folder.fixture.ts";
import { blocksOf, documents, proseOf, shellWords, shownCommands } from "./documents.ts";

/** Makes the parser throw its message, and its commands report their arguments instead of running. */
function onlyParse(command: Command, parsed: (words: string[]) => void): Command {
  command.exitOverride().configureOutput({ writeErr: () => {}, writeOut: () => {} });
  for (const child of command.commands) {
    onlyParse(child, parsed).action((...given) => {
      parsed(
        given
          .slice(0, -2)
          .flat()
          .filter((word) => typeof word === "string"),
      );
    });
  }
  return command;
}

const composed = new Set([""]);

/** Many commands have the same settings, and most have none. */
function composeOnce(overrides: string[]): void {
  if (composed.has(overrides.join("\n"))) return;
  composeConfig({ overrides });
  composed.add(overrides.join("\n"));
}

/** @returns what is wrong with a command line */
async function mistakeOf(words: readonly string[]): Promise<string | undefined> {
  const shown = words.filter((word) => word !== "...");
  try {
    if (shown[0] === "lightrft" && words.includes("...")) return undefined;
    if (shown[0] === "lightrft") return void readLightRft(shown.slice(1));
    let given: string[] = [];
    const hone = onlyParse(await program(shown), (arguments_) => {
      given = arguments_;
    });
    await hone.parseAsync(shown, { from: "user" });
    // A sweep's first value stands for all.
    const sweeps = shown.includes("-m") || shown.includes("--multirun");
    const settings = given.filter((word) => /^[+~]{0,2}[\w./@]+=/.test(word));
    composeOnce(sweeps ? settings.map((word) => word.replace(/,.*/, "")) : settings);
    return undefined;
  } catch (error) {
    if (error instanceof CommanderError) {
      const excused = error.code === "commander.missingArgument" && words.includes("...");
      return excused || error.exitCode === 0 ? undefined : error.message;
    }
    if (error instanceof UserError) return error.message;
    throw error;
  }
}

test("the commands of the documents parse, and their settings compose", async () => {
  const commands = shownCommands();
  expect(commands.length).toBeGreaterThan(100);
  const mistakes: string[] = [];
  for (const { place, words } of commands) {
    const mistake = await mistakeOf(words);
    if (mistake !== undefined) mistakes.push(`${place}: hone ${words.join(" ")}: ${mistake}`);
  }
  expect(mistakes).toEqual([]);
});

test("wrong commands, flags and keys are found", async () => {
  expect(await mistakeOf(["trian", "./train.ts"])).toMatch(/unknown command/);
  expect(await mistakeOf(["train", "./train.ts", "--no-such"])).toMatch(/unknown option/);
  expect(await mistakeOf(["train", "./train.ts", "rllm.rollout.m=3"])).toMatch(/rllm\.rollout\.m/);
  expect(await mistakeOf(["lightrft", "./train.ts", "--no_such", "3"])).toMatch(/no_such/);
});

/** The section of a key; `model.` also begins calls of the model in scripts. */
const keyPattern = /^\+*((?:rllm|training|data|local|sampling|sft|dpo|distillation|rollout_engine)(?:\.\w+)+)(?:=.*)?$/;
const isFile = (name: string) => /\.(ts|md|yaml)$/.test(name);
/** These pages also list the names of other systems. */
const foreign = /^docs\/(guide\/from-|reference\/verl)/;

test("the keys in the text of the documents exist", () => {
  const named = documents
    .filter((document) => !foreign.test(document))
    .flatMap((document) =>
      [...proseOf(document).matchAll(/`([^`\n]+)`/g)].flatMap(([, code = ""]) => {
        const key = keyPattern.exec(code)?.[1];
        return key === undefined || isFile(key) ? [] : [{ document, key }];
      }),
    );
  expect(named.length).toBeGreaterThan(300);
  const isKnown = (key: string) =>
    configKeys.has(key) ||
    configSections.has(key) ||
    configKeys.get(key.replace(/\.\w+$/, ""))?.type.includes("any keys");
  expect(named.filter(({ key }) => !isKnown(key))).toEqual([]);
});

test.each([
  [`hone view --filter 'reward<0.2 and a="b"' # why`, ["hone", "view", "--filter", 'reward<0.2 and a="b"']],
  ['A=1 hone sft a.jsonl > "out put"', ["A=1", "hone", "sft", "a.jsonl"]],
  ["hone x a.b='c d'", ["hone", "x", "a.b=c d"]],
])("%s is split as a shell does", (line, words) => {
  expect(shellWords(line)).toEqual(words);
});

describe("configurations", () => {
  const blocks = documents.flatMap(blocksOf).filter(({ language }) => language === "yaml");
  test.each(blocks.map(({ place, code }) => [place, code] as const))("%s is accepted", (place, code) => {
    const file = join(testFolder("yaml"), "config.yaml");
    writeFileSync(file, code);
    expect(composeConfig({ files: [file] }).config, place).toBeDefined();
  });
  test.each(
    documents
      .flatMap(blocksOf)
      .filter(({ language }) => language === "json")
      .map(({ place, code }) => [place, code]),
  )("%s is JSON", (_, code) => {
    expect(() => JSON.parse(code!)).not.toThrow();
  });
});
