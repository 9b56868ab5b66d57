/** Arguments and options that several commands have. */
import { existsSync, readFileSync } from "node:fs";
import { InvalidArgumentError, Option } from "commander";
import { messageOf, UserError } from "../errors.ts";

export const overrides = ["[overrides...]", "key=value pairs of the configuration", addOverride] as const;

function addOverride(text: string, earlier: string[] = []): string[] {
  if (!text.includes("=") && existsSync(text)) {
    throw new InvalidArgumentError(
      `Settings have the form key=value. A model is named by model.name=${text}, a run's weights by an option such as --checkpoint.`,
    );
  }
  return [...earlier, text];
}

export const configFiles = () =>
  new Option("-c, --config <file...>", "YAML files; a later file wins over an earlier one, key=value pairs over all");

/** Every name that a checkpoint has. */
export const checkpointNames = "a run folder, a checkpoint in it, or RUN/best";

export const checkpoint = () => new Option("--checkpoint <folder>", checkpointNames);

export const format = () => new Option("--format <form>", "output format").choices(["yaml", "json"]).default("yaml");

export const strict = () => new Option("--strict", "treat warnings about LightRFT's flags as errors");

/** Parses the value of an option. The parser adds the option's name to the message. */
export const wholeNumber =
  (least: number, most = Number.MAX_SAFE_INTEGER) =>
  (text: string): number => {
    const value = Number(text);
    if (text.trim() !== "" && Number.isInteger(value) && value >= least && value <= most) return value;
    const range = most === Number.MAX_SAFE_INTEGER ? `of at least ${least}` : `from ${least} to ${most}`;
    throw new InvalidArgumentError(`It must be a whole number ${range}.`);
  };

/** The text of a file that an argument names. */
export function readText(file: string): string {
  try {
    return readFileSync(file, "utf8");
  } catch (cause) {
    throw new UserError(`${file} cannot be read: ${messageOf(cause)}`, { cause });
  }
}
