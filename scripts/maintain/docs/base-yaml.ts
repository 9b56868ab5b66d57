/** Generates config/rllm/base.yaml: every key of `rllm` with its default, for people to read and Hydra to compose. */
import { stringify } from "yaml";
import { configKeys } from "../../../src/config/schema.ts";

export function baseYaml(): string {
  const lines = [
    "# Every key of rllm.* with its default, for all backends. Generated from the schema by `npm run docs`: do not edit.",
  ];
  let open: string[] = [];
  for (const { key, default: value, about, description } of configKeys.values()) {
    const [root, ...sections] = key.split(".");
    const name = sections.pop();
    if (root !== "rllm" || name === undefined) continue;
    let depth = 0;
    while (depth < sections.length && open[depth] === sections[depth]) depth++;
    if (depth === 0 && open.length + sections.length > 0) lines.push("");
    for (; depth < sections.length; depth++) lines.push(`${"  ".repeat(depth)}${sections[depth]}:`);
    open = sections;
    const indent = "  ".repeat(sections.length);
    lines.push(`${indent}# ${description}`, `${indent}${name}: ${written(about.written ?? value)}`);
  }
  return `${lines.join("\n")}\n`;
}

function written(value: unknown): string {
  if (typeof value === "string") return stringify(value, { lineWidth: 0 }).trim();
  return stringify(value, { lineWidth: 0, collectionStyle: "flow", flowCollectionPadding: false }).trim();
}
