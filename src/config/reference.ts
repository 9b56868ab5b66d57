/** The reference pages, generated from the schema: every key with its type, default, meaning and who honours it. */
import { join } from "node:path";
import { composeConfig } from "./compose.ts";
import { configKeys, describeKey, type KeyDescription } from "./describe.ts";
import { flagSections } from "./lightrft/flags.ts";
import { flagDescriptions, isSwitch } from "./lightrft/parse-flags.ts";
import { verlKeys } from "./schema/verl.ts";
import { shippedFolder } from "./shipped.ts";
import { sharedKeys, verlSharedKeys } from "./sync/shared-keys.ts";
import { valueAt } from "./value-at.ts";

const generated = "<!-- Generated from the schema by `npm run docs`: do not edit. -->";

/** By the path in the repository. */
export const referencePages = {
  "docs/reference/README.md": overview,
  "docs/reference/rllm.md": () => keyPage("`rllm`: what every backend shares", true),
  "docs/reference/blocks.md": () => keyPage("Blocks of the local engine and of Tinker", false),
  "docs/reference/verl.md": verlPage,
  "docs/reference/lightrft.md": lightRftPage,
};

function overview(): string {
  return page(
    "Configuration",
    `\`hone config\` prints the composed configuration, \`hone config --explain KEY\` says of a key what it means, where its value
comes from and what it does on the chosen backend, and \`hone config schema\` prints the JSON Schema from which editors
complete and check YAML files.

Composition begins with \`config/unified.yaml\`, whose defaults list brings \`config/rllm/base.yaml\` and the chosen backend's
\`config/rllm/backend/*.yaml\`. Over it come the script's \`config\`, the files of \`--config\`, and the overrides of the command
line, each stronger than the one before.

| page | what it lists |
|---|---|
| [rllm.md](rllm.md) | \`rllm.*\`: agents, rollouts, algorithms, filters, rewards, the trainer |
| [blocks.md](blocks.md) | \`model\`, \`training\`, \`data\`, \`sampling\`, ...: the local engine's and Tinker's own blocks |
| [verl.md](verl.md) | verl's names of shared keys, and the keys of its own tree that Hone knows |
| [lightrft.md](lightrft.md) | the flags of \`hone lightrft\` |

A setting that the chosen backend cannot honour, or that no part of Hone reads yet, stops a run before it starts, with a
sentence that says so; \`rllm.on_unsupported=warn\` goes on without it.

## Keys with two names

On the local engine and on Tinker these are brought to one value. The name set in the later layer wins, \`rllm.*\` within one.

${table(
  ["block's name", "rllm's name"],
  sharedKeys.map(([native, rllm]) => [code(native), code(rllm)]),
)}`,
  );
}

function keyPage(title: string, ofRllm: boolean): string {
  const keys = [...configKeys.values()].filter(({ key }) => ofRllm === key.startsWith("rllm."));
  const parts = [...new Set(keys.map(({ key }) => sectionOf(key)))].map((section) => {
    const members = keys.filter(({ key }) => sectionOf(key) === section);
    const heading = section === "" ? "At the root" : code(section);
    return `## ${heading}\n\n${table(["key", "type", "default", "meaning", "honoured by"], members.map(keyRow))}`;
  });
  return page(title, parts.join("\n\n"));
}

const sectionOf = (key: string) => key.slice(0, Math.max(0, key.lastIndexOf(".")));

function keyRow(known: KeyDescription): string[] {
  const { key, type, description, about } = known;
  const meaning = [description, about.note && `*${about.note}*`, laterText(about.later)].filter(Boolean).join(" ");
  const fallback = about.written ?? JSON.stringify(known.default);
  return [code(key.slice(key.lastIndexOf(".") + 1)), type, code(fallback), meaning, honouredBy(known)];
}

function laterText(later: KeyDescription["about"]["later"]): string | undefined {
  if (later === undefined || typeof later === "string") return later && `**Not yet:** ${later}.`;
  const names = Object.keys(later);
  return names.length === 0 ? undefined : `**Not yet:** ${names.map(code).join(", ")}.`;
}

function honouredBy({ about }: KeyDescription): string {
  if (typeof about.later === "string") return "none yet";
  return about.backends?.join(", ") ?? "all";
}

function verlPage(): string {
  // The stand-in, whether or not this machine has verl.
  const { tree } = composeConfig({ configPath: join(shippedFolder, "verl"), overrides: ["rllm/backend=verl"] });
  const common = new Map([...verlSharedKeys, ["trainer.total_training_steps", "rllm.trainer.total_batches"] as const]);
  const rows = Object.entries(verlKeys).map(([key, schema]) => {
    const { type, description } = describeKey(key, schema);
    const shared = common.get(key);
    return [code(key), type, code(JSON.stringify(valueAt(tree, key))), shared ? code(shared) : "", description];
  });
  return page(
    "verl",
    `\`rllm/backend=verl\` composes verl's own tree (of the Python package verl where it is installed, else the stand-in in
\`config/verl\`) with \`rllm.*\`. Keys that both have are brought to one value: the \`rllm.*\` name set on the command line wins, then
verl's name set there, then a default of \`rllm.*\` that is not null, then verl's own default. Setting verl's name of a shared
key is a \`warning[deprecated_native]\`; setting both to different values a \`warning[conflict]\`. Beside the table, the learning
rate's schedule is \`lr_scheduler_type\`, \`lr_decay_style\` or \`decay_type\` by verl's training engine, and \`eps_clip\` goes to
\`clip_ratio\`, \`clip_ratio_low\` and, unless \`eps_clip_high\` is set, \`clip_ratio_high\`.

The defaults are those after composition.

${table(["key", "type", "default", "rllm's name", "meaning"], rows)}`,
  );
}

function lightRftPage(): string {
  const parts = Object.entries(flagSections).map(([section, flags]) => {
    const rows = Object.keys(flags).map((name) => {
      const known = flagDescriptions.get(name)!;
      const { note } = known.about;
      const type = isSwitch(known) ? "switch" : known.type;
      const fallback = known.about.written ?? JSON.stringify(known.default ?? null);
      return [
        code(`--${name}`),
        type,
        code(fallback),
        [known.description, note && `*${note}*`].filter(Boolean).join(" "),
      ];
    });
    return `## ${section}\n\n${table(["flag", "type", "default", "meaning"], rows)}`;
  });
  return page("`hone lightrft`", parts.join("\n\n"));
}

function page(title: string, body: string): string {
  return `# ${title}\n${generated}\n\n${body}\n`;
}

function table(heads: readonly string[], rows: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[]) => `| ${cells.map((cell) => cell.replaceAll("|", "\\|")).join(" | ")} |`;
  return [line(heads), `|${"---|".repeat(heads.length)}`, ...rows.map(line)].join("\n");
}

const code = (text: string) => `\`${text}\``;
