/** `hone lightrft`: trains with LightRFT's flags. */
import type { Command } from "commander";
import { composeLightRft, readLightRft } from "../../config/lightrft/compose-lightrft.ts";
import { aliases, flagSections } from "../../config/lightrft/flags.ts";
import { flagDescriptions, isSwitch } from "../../config/lightrft/parse-flags.ts";
import { toYaml } from "../../config/to-yaml.ts";
import { UserError } from "../../errors.ts";
import { strict } from "../options.ts";
import { printWarnings } from "../print-warnings.ts";
import { runScript } from "../run-script.ts";

interface LightRftFlags {
  dryRun?: boolean;
  strict?: boolean;
}

export function register(command: Command): void {
  command
    .argument("[words...]", "the experiment's script, LightRFT's flags, and key=value pairs, which win over the flags")
    .allowUnknownOption()
    .addOption(strict())
    .option("--dry-run", "print the configuration that results from the flags, then stop")
    .addHelpText("after", () => `\n${flagsHelp()}\n${examples}`)
    .action(lightRftCommand);
}

const examples = `
Examples:
  hone lightrft ./train.ts --pretrain Qwen/Qwen2.5-0.5B-Instruct --train_batch_size 64 --rollout_batch_size 16
  hone lightrft ./train.ts --pretrain ./my-model --train_batch_size 128 --rollout_batch_size 16 \\
    --n_samples_per_prompt 8 --advantage_estimator gspo --save_path runs/gspo local.sampler.type=own
  hone lightrft --pretrain ./my-model --train_batch_size 64 --rollout_batch_size 16 --dry-run`;

/** @throws UserError for wrong flags, and if a script is missing */
async function lightRftCommand(words: readonly string[], { dryRun = false, strict = false }: LightRftFlags) {
  const command = readLightRft(words, { strict });
  const { settings, script, overrides } = command;
  if (script !== undefined) {
    await runScript(script, { frontDoor: settings, overrides, dryRun });
    return;
  }
  if (!dryRun) {
    throw new UserError("the script of an experiment is missing: it has the tasks and the reward", {
      hint: "name it first: hone lightrft ./train.ts --pretrain ...; or add --dry-run to print the configuration",
    });
  }
  const composed = composeLightRft(command);
  printWarnings(composed);
  process.stdout.write(`${toYaml(composed.stored, composed.origins, { unresolved: true }).trimEnd()}\n`);
}

/** Lists every flag with its type, default and meaning, by the sections of LightRFT's documentation. */
function flagsHelp(width = 100): string {
  const spelled = (name: string) =>
    Object.keys(aliases).filter((alias) => aliases[alias] === name && !alias.startsWith("disable_"));
  return Object.entries(flagSections)
    .map(([section, flags]) => {
      const lines = Object.keys(flags).map((name) => {
        const known = flagDescriptions.get(name)!;
        const names = [name, ...spelled(name)].map((one) => `--${one}`).join(", ");
        const type = isSwitch(known) ? "" : ` <${known.type}>`;
        const fallback = known.about.written ?? (known.default === null ? "none" : JSON.stringify(known.default));
        const note =
          isSwitch(known) && known.default === false
            ? ""
            : ` (${fallback === "required" ? "" : "default "}${fallback})`;
        return [`  ${names}${type}`, ...wrap(`${known.description}${note}`, width - 6).map((line) => `      ${line}`)];
      });
      return [`${section}:`, ...lines.flat()].join("\n");
    })
    .join("\n\n");
}

function wrap(text: string, width: number): string[] {
  const lines = [""];
  for (const word of text.split(" ")) {
    const last = lines.at(-1)!;
    if (last !== "" && last.length + 1 + word.length > width) lines.push(word);
    else lines[lines.length - 1] = last === "" ? word : `${last} ${word}`;
  }
  return lines;
}
