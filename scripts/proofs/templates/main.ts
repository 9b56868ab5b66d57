/**
 * Compares Hone's chat templates with transformers' (record.py), for each template of a folder and each conversation.
 * `npx tsx scripts/proofs/templates/main.ts templates recorded.json`
 */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { compileJinja } from "../../../src/chat/jinja/jinja.ts";
import { fromJson } from "../../../src/chat/jinja/texts.ts";
import type { Dict } from "../../../src/chat/jinja/values.ts";

const [folder = "", recorded = ""] = process.argv.slice(2);
const file = new URL("./conversations.json", import.meta.url);
const plain = JSON.parse(readFileSync(file, "utf8")) as Record<string, unknown>[];
const exact = fromJson(readFileSync(file, "utf8")) as Dict[];
const results = JSON.parse(readFileSync(recorded, "utf8")) as Record<string, { text?: string; error?: string }[]>;

const tokens = { bos_token: "<s>", eos_token: "</s>", pad_token: "<pad>", unk_token: "<unk>" };
const base = { tools: null, documents: null, ...tokens };
const now = new Date(2026, 2, 7, 16, 5, 9);

function render(source: string, index: number): { text?: string; error?: string } {
  try {
    const pairs = (exact[index] as Dict).pairs().filter(([key]) => key !== "name");
    return { text: compileJinja(source).render({ ...base, ...Object.fromEntries(pairs) }, 1e6, now) };
  } catch (error) {
    return { error: error instanceof Error ? error.message : String(error) };
  }
}

const counts = { equal: 0, "both refuse": 0, different: 0, "only Hone refuses": 0, "only transformers refuses": 0 };
const differing = new Set<string>();
for (const [name, wanted] of Object.entries(results)) {
  const source = readFileSync(join(folder, name), "utf8");
  for (const [index, expected] of wanted.entries()) {
    const got = render(source, index);
    const verdict =
      expected.text === undefined
        ? got.text === undefined
          ? "both refuse"
          : "only transformers refuses"
        : got.text === undefined
          ? "only Hone refuses"
          : got.text === expected.text
            ? "equal"
            : "different";
    counts[verdict]++;
    if (verdict === "equal" || verdict === "both refuse") continue;
    differing.add(name);
    console.log(`${verdict}: ${name}, ${plain[index]?.name}\n${show(expected, got)}`);
  }
}
console.log({
  templates: Object.keys(results).length,
  conversations: plain.length,
  ...counts,
  differing: differing.size,
});

function show(expected: { text?: string; error?: string }, got: { text?: string; error?: string }): string {
  const [left = "", right = ""] = [expected.text, got.text];
  let at = 0;
  while (at < left.length && left[at] === right[at]) at++;
  const part = (text: string) => JSON.stringify(text.slice(Math.max(0, at - 40), at + 80));
  return `  transformers: ${expected.error ?? part(left)}\n  Hone:         ${got.error ?? part(right)}`;
}
