/** Compares Hone with the random templates of fuzz.py: `npx tsx scripts/proofs/templates/fuzz.ts fuzz.json [shown]` */
import { readFileSync } from "node:fs";
import { compileJinja } from "../../../src/chat/jinja/jinja.ts";
import { fromJson } from "../../../src/chat/jinja/texts.ts";
import type { Dict } from "../../../src/chat/jinja/values.ts";

interface Case {
  template: string;
  text?: string;
  error?: string;
}

const [file = "", shown = "20"] = process.argv.slice(2);
const written = readFileSync(file, "utf8");
const { results } = JSON.parse(written) as { results: Case[] };
const variables = (fromJson(written) as Dict).get("variables") as Dict;

const counts = { equal: 0, "both refuse": 0, different: 0, "only Hone refuses": 0, "only transformers refuses": 0 };
let left = Number(shown);
for (const { template, text, error } of results) {
  let got: Omit<Case, "template">;
  try {
    got = { text: compileJinja(template).render(variables, 1e6) };
  } catch (problem) {
    got = { error: problem instanceof Error ? problem.message : String(problem) };
  }
  const refused = got.text === undefined;
  const verdict =
    text === undefined
      ? refused
        ? "both refuse"
        : "only transformers refuses"
      : refused
        ? "only Hone refuses"
        : got.text === text
          ? "equal"
          : "different";
  counts[verdict]++;
  if (verdict === "equal" || verdict === "both refuse" || left-- <= 0) continue;
  const lines = [
    `${verdict}: ${JSON.stringify(template)}`,
    JSON.stringify(text ?? error),
    JSON.stringify(got.text ?? got.error),
  ];
  console.log(lines.map((line) => line.slice(0, 400)).join("\n  "));
}
console.log(counts);
