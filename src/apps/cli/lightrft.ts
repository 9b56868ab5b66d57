/** `hone lightrft`: trains with LightRFT's flags. */
import { type Command, Help } from "commander";
import { UserError } from "../../base/errors.ts";
import {
  composeLightRft,
  flagDescriptions,
  isRequired,
  isSwitch,
  readLightRft,
} from "../../config/lightrft/compose.ts";
import { flagTable } from "../../config/lightrft/flags.ts";
import type { KeyDescription } from "../../config/schema.ts";
import { printWarnings } from "../../config/secrets.ts";
import { toYaml } from "../../config/yaml.ts";
import { checkSettings } from "../../rules/check.ts";
import { strict } from "./options.ts";
import { isSpareCopy, runScript } from "./script.ts";

interface LightRftFlags {
  dryRun?: boolean;
  strict?: boolean;
}

export function register(command: Command): void {
  command
    .usage("[options] <script> [flags and overrides...]")
    .argument(
      "[arguments...]",
      "the experiment's script, LightRFT's flags, and key=value pairs, which win over the flags",
    )
    .allowUnknownOption()
    .addOption(strict())
    .option("--dry-run", "print the configuration that results from the flags, then stop")
    .addHelpText("after", () => `\n${flagsHelp()}\n${examples}`)
    .action(lightRftCommand);
}

const examples = `
Examples:
  hone lightrft ./train.ts --pretrain Qwen/Qwen2.5-0.5B-Instruct \\
    --train_batch_size 64 --rollout_batch_size 16
  hone lightrft ./train.ts --pretrain ./my-model --train_batch_size 128 \\
    --rollout_batch_size 16 --n_samples_per_prompt 8 --save_path runs/gspo \\
    --advantage_estimator gspo local.sampler.type=own
  hone lightrft --pretrain ./my-model --train_batch_size 64 \\
    --rollout_batch_size 16 --dry-run`;

/** @throws UserError for wrong flags, and if a script is missing */
async function lightRftCommand(words: readonly string[], { dryRun = false, strict = false }: LightRftFlags) {
  if (isSpareCopy()) return;
  const command = readLightRft(words, { strict });
  const { settings, script, overrides } = command;
  if (script !== undefined) {
    await runScript(script, { translated: settings, overrides, dryRun });
    return;
  }
  if (!dryRun) {
    throw new UserError("the experiment's script is missing; it defines the tasks and the reward", {
      hint: "name it first: hone lightrft ./train.ts --pretrain ...; or add --dry-run to print the configuration",
    });
  }
  const composed = composeLightRft(command);
  const { warnings, isRefused } = checkSettings(composed, { dryRun: true });
  printWarnings(warnings);
  if (isRefused) process.exitCode = 2;
  process.stdout.write(`${toYaml(composed.stored, composed.origins, { unresolved: true }).trimEnd()}\n`);
}

/** Lists every flag with its type, default and meaning, by the sections of LightRFT's documentation. */
function flagsHelp(): string {
  const layout = new Help();
  const lines = flagTable.flatMap(([name, { section, aliases = [] }]) => {
    const flag = flagDescriptions.get(name)!;
    const names = [name, ...aliases].map((one) => `--${one}`).join(", ");
    const type = isSwitch(flag) ? "" : ` <${flag.type.replace("non-empty ", "").replace(" or null", "")}>`;
    const meaning = layout.boxWrap(describeFlag(flag), 74).replaceAll("\n", "\n      ");
    return [...(section === undefined ? [] : [`\n${section}:`]), `  ${names}${type}`, `      ${meaning}`];
  });
  return lines.join("\n").trimStart();
}

function describeFlag(flag: KeyDescription): string {
  if (isSwitch(flag) && flag.default === false) return flag.description;
  if (isRequired(flag)) return `${flag.description} (required)`;
  return `${flag.description} (default ${flag.default === null ? "none" : JSON.stringify(flag.default)})`;
}
