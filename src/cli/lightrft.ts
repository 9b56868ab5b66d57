/** `hone lightrft`: LightRFT's command line as a run of Hone, and `hone config lightrft`: as a configuration to keep. */

import { unsupportedSettings, unsupportedWarning } from "../config/check-support.ts";
import { composeLightRft, readLightRft } from "../config/lightrft/compose-lightrft.ts";
import { aliases, flagSections } from "../config/lightrft/flags.ts";
import { flagDescriptions, isSwitch } from "../config/lightrft/parse-flags.ts";
import { toYaml } from "../config/to-yaml.ts";
import { warningLine } from "../config/warnings.ts";
import { UserError } from "../errors.ts";
import { runScript } from "./train.ts";

interface LightRftOptions {
  dryRun?: boolean;
  strict?: boolean;
}

/** @throws UserError for mistaken flags, and when there is no script to run */
export async function lightRftCommand(args: readonly string[], options: LightRftOptions): Promise<void> {
  const command = readLightRft(args, { strict: options.strict ?? false });
  const { settings, script, overrides } = command;
  if (script !== undefined) {
    await runScript(script, { frontDoor: settings, overrides, dryRun: options.dryRun ?? false });
    return;
  }
  const composed = composeLightRft(command);
  if (!options.dryRun) {
    throw new UserError("which tasks, and what is a good answer to them? A run needs the script of an experiment", {
      hint: "hone lightrft ./train.ts --pretrain ...; --dry-run shows the configuration without",
    });
  }
  const unsupported = unsupportedSettings(composed).map((one) => unsupportedWarning(one, { dryRun: true }));
  for (const warning of [...composed.warnings, ...unsupported]) process.stderr.write(`${warningLine(warning)}\n`);
  process.stdout.write(`${toYaml(composed.stored, composed.origins, { unresolved: true }).trimEnd()}\n`);
}

/** Every flag with its type, default and meaning, by the sections of LightRFT's documentation. */
export function lightRftFlagsHelp(width = 100): string {
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
