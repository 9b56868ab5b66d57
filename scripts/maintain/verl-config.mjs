#!/usr/bin/env node
/**
 * Rewrites config/verl from the verl of its Python environment, after its version was changed in worker/: the files that
 * verl's trainer composes, without comments. With them, settings are checked before the environment is installed.
 */
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../..", import.meta.url));
const libraries = join(root, ".hone", "verl", "lib");
const python = readdirSync(libraries)[0] ?? "";
const packages = join(libraries, python, "site-packages");
const version = readdirSync(packages).find((name) => /^verl-.*\.dist-info$/.test(name)) ?? "";
const source = join(packages, "verl", "trainer", "config");
const target = join(root, "config", "verl");

const others = /^(_generated|evaluation|sft_trainer|ppo_megatron)|^npu_profile/;
const files = readdirSync(source, { recursive: true, encoding: "utf8" })
  .filter((name) => name.endsWith(".yaml") && !others.test(name))
  .sort();
rmSync(target, { recursive: true, force: true });
for (const name of files) {
  const lines = readFileSync(join(source, name), "utf8").split("\n");
  const kept = lines.filter((line) => /^\s*#\s*@package/.test(line) || !/^\s*(#|$)/.test(line));
  const header = `# From verl ${version.slice("verl-".length, -".dist-info".length)} (Apache License 2.0), without comments: node scripts/maintain/verl-config.mjs`;
  mkdirSync(dirname(join(target, name)), { recursive: true });
  // A directive must be in the first lines.
  const [first = "", ...rest] = kept;
  const directive = first.includes("@package") ? [first] : [];
  const body = directive.length > 0 ? rest : kept;
  writeFileSync(join(target, name), `${[...directive, header, ...body].join("\n")}\n`);
}
console.log(`${files.length} files in config/verl`);
