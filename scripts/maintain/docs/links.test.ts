/** Every link between documents leads to a file and a heading that exist, and every page is in the sidebar of the site. */
import { existsSync } from "node:fs";
import { join, posix } from "node:path";
import { expect, test } from "vitest";
import { packageRoot } from "../../setup/paths.mjs";
import { documents, proseOf } from "./documents.ts";
import { githubSlug } from "./github-slug.ts";
import { home, pageOf, sections, siteLink } from "./site-map.ts";

const anchors = new Map<string, ReadonlySet<string>>();

/** The anchors of a document's headings; a repeated heading gets a number. */
function anchorsOf(document: string): ReadonlySet<string> {
  const known = anchors.get(document);
  if (known !== undefined) return known;
  const counts = new Map<string, number>();
  const found = [...proseOf(document).matchAll(/^#{1,6} (.+)$/gm)].map(([, heading = ""]) => {
    const slug = githubSlug(heading);
    const count = counts.get(slug) ?? 0;
    counts.set(slug, count + 1);
    return count === 0 ? slug : `${slug}-${count}`;
  });
  const all = new Set(found);
  anchors.set(document, all);
  return all;
}

/** The targets of a document's links and pictures within the repository. */
const linksOf = (document: string) =>
  [
    ...proseOf(document)
      .replaceAll(/`[^`\n]*`/g, "``")
      .matchAll(/\]\(([^)\s]+)\)/g),
  ]
    .map(([, target = ""]) => target)
    .filter((target) => !/^[a-z]+:/.test(target));

function problemOf(document: string, link: string): string | undefined {
  const [file = "", anchor] = link.split("#");
  const target = file === "" ? document : posix.join(posix.dirname(document), file);
  if (!existsSync(join(packageRoot, target))) return `${document}: ${link} does not exist`;
  if (anchor !== undefined && !anchorsOf(target).has(anchor)) return `${document}: ${link} has no such heading`;
  const onSite = pageOf(document) !== undefined && target.endsWith(".md");
  if (onSite && siteLink(document, link) === undefined) return `${document}: ${link} is not on the site`;
  return undefined;
}

test("links lead to files and headings that exist", () => {
  const links = documents.flatMap((document) => linksOf(document).map((link) => [document, link] as const));
  expect(links.length).toBeGreaterThan(200);
  expect(links.flatMap(([document, link]) => problemOf(document, link) ?? [])).toEqual([]);
});

test("every page is in the sidebar once, and none is listed that does not exist", () => {
  const listed = [home, ...sections.flatMap(({ pages }) => pages)].sort();
  expect(listed).toEqual(documents.filter((document) => document !== "README.md").sort());
});

test.each([
  ["Keys with two names", "keys-with-two-names"],
  ["`rllm.workflow`", "rllmworkflow"],
  ["No GPU, one GPU: [a link](x.md)?", "no-gpu-one-gpu-a-link"],
  ["What `a_b` - does", "what-a_b---does"],
])("the anchor of %s is GitHub's", (heading, anchor) => {
  expect(githubSlug(heading)).toBe(anchor);
});

test.each([
  ["docs/guide/why.md", "../glossary.md", "/glossary"],
  ["docs/guide/why.md", "#when-it-helps", "/guide/why#when-it-helps"],
  ["docs/guide/recipes.md", "../../examples/stages/README.md", "/recipes/stages"],
  [
    "examples/stages/README.md",
    "../../docs/guide/fine-tuning.md#a-chain-of-runs",
    "/guide/fine-tuning#a-chain-of-runs",
  ],
  ["docs/guide/why.md", "../reference/README.md", "/reference/"],
  ["CHANGELOG.md", "docs/README.md", "/"],
  ["docs/guide/why.md", "../../src/index.ts", undefined],
])("%s: %s is %s on the site", (from, link, address) => {
  expect(siteLink(from, link)).toBe(address);
});
