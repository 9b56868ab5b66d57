/** Generates config/rllm/base.yaml: every key of `rllm` with its default, for people to read and Hydra to compose. */
import { stringify } from "yaml";
import { configKeys } from "../describe.ts";

export function baseYaml(): string {
  const lines = [
    "# Every key of rllm.* with its default, for all backends. Generated from the schema by `npm run docs`: do not edit.",
  ];
  let open: string[] = [];
  for (const { key, default: value, about, description } of configKeys.values()) {
    const [root, ...names] = key.split(".");
    if (root !== "rllm") continue;
    const sections = names.slice(0, -1);
    let depth = 0;
    while (depth < sections.length && open[depth] === sections[depth]) depth++;
    if (open.length > 0 || sections.length > 0)
      if (depth < sections.length || open.length > depth) if (depth === 0) lines.push("");
    for (; depth < sections.length; depth++) lines.push(`${"  ".repeat(depth)}${sections[depth]}:`);
    open = sections;
    const indent = "  ".repeat(sections.length);
    lines.push(`${indent}# ${description}`, `${indent}${names.at(-1)}: ${written(about.written ?? value)}`);
  }
  return `${lines.join("\n")}\n`;
}

function written(value: unknown): string {
  if (typeof value === "string") return stringify(value, { lineWidth: 0 }).trim();
  return stringify(value, { lineWidth: 0, collectionStyle: "flow", flowCollectionPadding: false }).trim();
}
