/** What each LightRFT flag becomes, found by giving it. */
import { readLightRft } from "../../../src/config/lightrft/compose-lightrft.ts";
import type { FlagName } from "../../../src/config/lightrft/flags.ts";
import { flagDescriptions, isSwitch } from "../../../src/config/lightrft/parse-flags.ts";
import type { MapNode } from "../../../src/config/tree/node.ts";
import { UserError } from "../../../src/errors.ts";

const required = ["--pretrain", "m", "--train_batch_size", "64", "--rollout_batch_size", "16"];
/** Flags without which another has no effect. */
const context: Partial<Record<FlagName, readonly string[]>> = { ckpt_path: ["--load_checkpoint"] };

/** The keys that a flag sets, or why it sets none. */
export function flagEffect(flag: FlagName): { keys: readonly string[]; noEffect?: string } {
  const known = flagDescriptions.get(flag)!;
  const values = isSwitch(known)
    ? [[]]
    : [...known.options.map(String), "2", "64", "0.5", "0.8,0.9", "x"].map((one) => [one]);
  let noEffect: string | undefined;
  for (const value of values) {
    try {
      const words = [...required, ...(context[flag] ?? []), `--${flag}`, ...value];
      const { flags, warnings } = readLightRft(words, { environment: {} }).settings;
      const keys = keysOf(flag, flags);
      if (keys.length > 0) return { keys };
      noEffect = warnings.find(({ paths }) => paths.includes(`--${flag}`))?.text.split(" has no effect: ")[1];
    } catch (error) {
      if (!(error instanceof UserError)) throw error;
    }
  }
  if (noEffect === undefined) throw new Error(`--${flag} sets no key, and no warning says why`);
  return { keys: [], noEffect };
}

/** The leaves that this flag set. */
function keysOf(flag: FlagName, { entries }: MapNode, prefix = ""): string[] {
  return entries.flatMap(({ name, node, origin }) => {
    const key = `${prefix}${name}`;
    if (node.kind === "map") return keysOf(flag, node, `${key}.`);
    const own = node.origin.kind === "flag" ? node.origin : origin;
    return own.kind === "flag" && own.text.split(" ")[0] === `--${flag}` ? [key] : [];
  });
}
