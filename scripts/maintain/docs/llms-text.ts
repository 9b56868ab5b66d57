/** `llms.txt`: the documentation's pages with a sentence each, for programs that read it. The format is that of llmstxt.org. */
import { home, readDocument, sections, titleOf } from "./site-map.ts";

export function llmsText(): string {
  const parts = [...sections.filter(({ detail }) => !detail), ...sections.filter(({ detail }) => detail)].map(
    ({ title, pages }) => `## ${title}\n\n${pages.map(line).join("\n")}\n`,
  );
  const { description } = JSON.parse(readDocument("package.json")) as { description: string };
  return `# Hone

> ${description} npm package \`hone-rl\`, command \`hone\`.

The files are in the package (\`node_modules/hone-rl\`), the first one to read is ${home}. \`npx hone-rl config --explain KEY\` explains a setting.

${parts.join("\n")}`;
}

function line(path: string): string {
  const text = readDocument(path);
  const summary = summaryOf(text);
  return `- [${titleOf(text)}](${path})${summary === "" ? "" : `: ${summary}`}`;
}

/** The description of a skill, or the first sentence of a page. */
function summaryOf(text: string): string {
  const described = /^---\n[\s\S]*?^description: (.+)$[\s\S]*?^---$/m.exec(text)?.[1];
  if (described !== undefined) return described;
  const paragraph = text
    .replaceAll(/^ *```[\s\S]*?^ *```$/gm, "\n")
    .split("\n\n")
    .map((part) => part.replace(/^(#|<!--).*\n?/gm, "").trim())
    .find((part) => /^[A-Z`"*[]/.test(part));
  const sentence = (paragraph ?? "").replaceAll("\n", " ").replace(/\[([^\]]+)\]\([^)]*\)/g, "$1");
  return /^.*?[.:?](?= |$)/.exec(sentence)?.[0].replace(/:$/, ".") ?? sentence;
}
