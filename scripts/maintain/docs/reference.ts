/** Generates the reference pages from the schema: every key with its type, default, meaning and supporting backends. */
import { join } from "node:path";
import { type ComposedConfig, composeConfig } from "../../../src/config/compose.ts";
import { flagDescriptions, isRequired, isSwitch } from "../../../src/config/lightrft/compose.ts";
import { flagTable, keysOf } from "../../../src/config/lightrft/flags.ts";
import { backends } from "../../../src/config/schema/backends.ts";
import { configKeys, describeKey, type KeyDescription } from "../../../src/config/schema.ts";
import { sharedKeys } from "../../../src/config/synonyms.ts";
import { shippedFolder, valueAt } from "../../../src/config/tree.ts";
import { currentVerlNames, verlNames, verlTypes } from "../../../src/config/verl-keys.ts";
import { sharedRules, supportingBackends } from "../../../src/rules/check.ts";
import { localEngine } from "../../../src/rules/conditions.ts";
import { table } from "./tables.ts";

const generated = "<!-- Generated from the schema by `npm run docs`: do not edit. -->";

/** The pages by their path in the repository. */
export const referencePages = {
  "docs/reference/README.md": overview,
  "docs/reference/rllm.md": () => keyPage("`rllm`: settings shared by all backends", true),
  "docs/reference/blocks.md": () => keyPage("Model, optimizer, sampling, data and the local engine", false),
  "docs/reference/verl.md": verlPage,
  "docs/reference/lightrft.md": lightRftPage,
};

function overview(): string {
  return page(
    "Configuration",
    `\`hone config\` prints the composed configuration. \`hone config --explain KEY\` explains a key: its meaning, the origin of
its value and its effect on the chosen backend. \`hone config schema\` prints the JSON Schema that editors use to complete
and check YAML files.

Composition starts with \`config/unified.yaml\`, whose defaults list loads \`config/rllm/base.yaml\` and the chosen backend's
\`config/rllm/backend/*.yaml\`. Then the script's \`config\`, the files of \`--config\` and the command-line overrides are
applied in this order; later layers override earlier ones.

| page | contents |
|---|---|
| [rllm.md](rllm.md) | \`rllm.*\`: agents, rollouts, algorithms, filters, rewards, the trainer |
| [blocks.md](blocks.md) | \`model\`, \`training\`, \`data\`, \`sampling\`, \`local\`, ...: model, optimizer, checkpoints, sampling, the local engine |
| [verl.md](verl.md) | verl's names for shared keys, and the keys of verl's own tree that Hone knows |
| [lightrft.md](lightrft.md) | the flags of \`hone lightrft\` |

There are three reasons why a setting does not act:

- **invalid**: settings contradict each other, such as \`local.sequence_parallel=3\` with \`local.processes=2\`. The run stops before it
  starts.
- **unsupported**: the chosen backend, this machine, or Hone so far cannot do it. The run stops before it starts. With
  \`rllm.on_unsupported=warn\` it continues with the default of the setting and prints \`warning[unsupported]\`.
- **no effect**: nothing reads the setting, because of another one, such as \`rllm.critic.learning_rate\` without a critic. The run
  prints \`warning[no_effect]\`, unless the value is the default.

\`hone config --explain KEY\` names the reason. \`hone config ./train.ts --explain KEY\` also applies the settings of a script and knows
whether it has a validation dataset. \`--dry-run\` lists every reason and exits with code 2 if a run would stop.

In the column "supported by", *all* means ${new Intl.ListFormat("en").format(backends.map(code))}.

## Keys with two names

On the local and Tinker backends, both names get the same value. The name set in the later layer wins; within one layer,
the \`rllm.*\` name wins.

${table(
  ["native name", "rllm name"],
  sharedKeys.map(([native, rllm]) => [code(native), code(rllm)]),
)}`,
  );
}

function keyPage(title: string, ofRllm: boolean): string {
  const composed = composeConfig();
  const keys = [...configKeys.values()].filter(({ key }) => ofRllm === key.startsWith("rllm."));
  const parts = [...new Set(keys.map(({ key }) => sectionOf(key)))].map((section) => {
    const members = keys.filter(({ key }) => sectionOf(key) === section);
    const heading = section === "" ? "At the root" : code(section);
    const intro = /^local\b/.test(section) ? `These keys require ${localEngine}.\n\n` : "";
    return `## ${heading}\n\n${intro}${table(
      ["key", "type", "default", "meaning", "supported by"],
      members.map((known) => keyRow(known, composed)),
    )}`;
  });
  return page(title, parts.join("\n\n"));
}

const sectionOf = (key: string) => key.slice(0, Math.max(0, key.lastIndexOf(".")));

function keyRow(known: KeyDescription, composed: ComposedConfig): string[] {
  const { key, type, description, about } = known;
  const requirements = requirementsOf(key).filter((one) => !(key.startsWith("local.") && isLocal(one)));
  const meaning = [description, ...requirements, about.note && `*${about.note}*`, laterText(about.later)]
    .filter(Boolean)
    .join(" ");
  const fallback = about.written ?? JSON.stringify(known.default);
  return [
    code(key.slice(key.lastIndexOf(".") + 1)),
    type,
    code(fallback),
    meaning,
    namesOf(supporting(known, composed)),
  ];
}

const laterText = (later: string | undefined) => later && `**No effect:** ${later}.`;

/** verl has no local engine. */
function supporting(known: KeyDescription, composed: ComposedConfig): readonly string[] {
  const isOfLocalEngine = requirementsOf(known.key).some(isLocal);
  return supportingBackends(known, composed).filter((backend) => !(isOfLocalEngine && backend === "verl"));
}

function namesOf(supporting: readonly string[]): string {
  if (supporting.length === backends.length) return "all";
  return supporting.length === 0 ? "none so far" : supporting.join(", ");
}

const isLocal = (requirement: string) => requirement.includes(localEngine);

/** What the key requires of other settings, a sentence each. */
function requirementsOf(key: string): string[] {
  return sharedRules
    .filter(({ keys, byEngine }) => !byEngine && keys.includes(key))
    .flatMap(({ when, requires }) => {
      if (requires === undefined) return [];
      if (when === undefined) return [`Requires ${requires}.`];
      return [`${when[0]?.toUpperCase()}${when.slice(1)}, it requires ${requires}.`];
    });
}

function verlPage(): string {
  // Always use the copy in config/verl, regardless of HONE_VERL_PYTHON.
  const { tree } = composeConfig({ configPath: join(shippedFolder, "verl"), overrides: ["rllm/backend=verl"] });
  const rows = Object.entries(verlTypes).map(([key, schema]) => {
    const { type, description } = describeKey(key, schema);
    const shared = verlNames.get(key);
    return [code(key), type, code(JSON.stringify(valueAt(tree, key))), shared ? code(shared) : "", description];
  });
  return page(
    "verl",
    `\`rllm/backend=verl\` composes verl's own tree with \`rllm.*\`. The tree is the copy of
verl's own in \`config/verl\`, or that of \`HONE_VERL_PYTHON\` if it is set. Keys with two names get the same value, in this order of priority: the
\`rllm.*\` name set on the command line, verl's name set there, a default of \`rllm.*\` that is not null, verl's own default.
Setting verl's name of a shared key prints \`warning[deprecated_native]\`; setting both names to different values prints
\`warning[conflict]\`. In addition to the table, the learning rate schedule is \`lr_scheduler_type\`, \`lr_decay_style\` or
\`decay_type\` depending on verl's training engine, and \`eps_clip\` sets \`clip_ratio\`, \`clip_ratio_low\` and, unless \`eps_clip_high\` is set, \`clip_ratio_high\`.

The defaults shown are the values after composition.

${table(["key", "type", "default", "rllm name", "meaning"], rows)}

## The model, the optimizer and the losses

Both names of these keys are current, so setting one of them does not warn.

${table(
  ["verl's name", "Hone's name"],
  currentVerlNames.map((names) => names.map(code)),
)}

A key of verl's own trainer, of its rollouts or of its data that is set to another value than the shipped one is refused,
because Hone's trainer, a vLLM server and the experiment's script replace these parts.`,
  );
}

function lightRftPage(): string {
  const composed = composeConfig();
  const starts = flagTable.flatMap(([, { section }], index) => (section === undefined ? [] : [{ section, index }]));
  const parts = starts.map(({ section, index }, number) => {
    const rows = flagTable.slice(index, starts[number + 1]?.index).map(([name, { noEffect }]) => {
      const known = flagDescriptions.get(name)!;
      const type = isSwitch(known) ? "switch" : known.type;
      const fallback = isRequired(known) ? "required" : JSON.stringify(known.default);
      const keys = keysOf(name);
      const settings = keys.map((key) => configKeys.get(key)!);
      const meaning = [
        known.description,
        known.about.note && `*${known.about.note}*`,
        typeof noEffect === "string" && `No effect: ${noEffect}.`,
      ];
      // LightRFT's runs are local, and a flag meets the conditions that name its own keys.
      const isMet = (condition: string) => isLocal(condition) || keys.some((key) => condition.includes(key));
      const conditions = settings.flatMap(({ key, about }) => [
        ...requirementsOf(key).filter((one) => !isMet(one)),
        laterText(about.later),
      ]);
      const able = backends.filter((backend) =>
        settings.every((setting) => supporting(setting, composed).includes(backend)),
      );
      return [
        code(`--${name}`),
        type,
        code(fallback),
        [...meaning, ...new Set(conditions)].filter(Boolean).join(" "),
        keys.map(code).join(", "),
        keys.length === 0 ? "" : namesOf(able),
      ];
    });
    const heads = ["flag", "type", "default", "meaning", "becomes", "supported by"];
    return `## ${section}\n\n${table(heads, rows)}`;
  });
  return page(
    "`hone lightrft`",
    `Each flag sets one or more settings of Hone, which also work in other commands. A flag on the command line overrides the script's
\`config\`; the default of a flag does not. If a flag on the command line is not supported, the run stops before it starts. If a default
is not supported, the run prints a warning and continues without it. Settings of \`local.*\` require a local engine.

${parts.join("\n\n")}`,
  );
}

function page(title: string, body: string): string {
  return `# ${title}\n${generated}\n\n${body}\n`;
}

const code = (text: string) => `\`${text}\``;
