/**
 * `config/rllm/base.yaml`: every key of `rllm` with its default, for all backends. The composition reads this text and never the file of
 * that name, which the package contains for people: origins name its lines.
 */
import { join } from "node:path";
import { stringify } from "yaml";
import { configKeys } from "./schema.ts";
import { shippedFolder } from "./tree.ts";

export const baseYamlFile = join(shippedFolder, "rllm", "base.yaml");

let composed: string | undefined;

export function baseYaml(): string {
  composed ??= compose();
  return composed;
}

function compose(): string {
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
    lines.push(`${indent}# ${description}`, `${indent}${name}: ${yamlText(about.written ?? value)}`);
  }
  return `${lines.join("\n")}\n`;
}

function yamlText(value: unknown): string {
  if (typeof value === "string") return stringify(value, { lineWidth: 0 }).trim();
  return stringify(value, { lineWidth: 0, collectionStyle: "flow", flowCollectionPadding: false }).trim();
}
