/**
 * The list of the documentation's pages in reading order. The sidebar of the site, `llms.txt` and the table in docs/README.md are made
 * from it; README.md links to that table. A page's title is its heading.
 */
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join, posix } from "node:path";
import { fileURLToPath } from "node:url";
import { pageWithTables, table } from "./tables.ts";

const root = fileURLToPath(new URL("../../..", import.meta.url));

interface Section {
  title: string;
  /** Files, by their path in the repository. */
  pages: readonly string[];
  /** Read only to look something up: closed in the sidebar, last in llms.txt. */
  detail?: boolean;
}

// A page that does not exist is left out here; links to it fail in links.test.ts.
const guide = (...names: string[]) => names.map((name) => `docs/guide/${name}.md`).filter(exists);
const reference = (...names: string[]) => names.map((name) => `docs/reference/${name}.md`);
const exists = (path: string) => existsSync(join(root, path));
/** The file of each folder in a folder, e.g. every example's README. */
const each = (folder: string, file: string) =>
  readdirSync(join(root, folder))
    .map((name) => `${folder}/${name}/${file}`)
    .filter(exists);

export const home = "docs/README.md";

export const sections: readonly Section[] = [
  { title: "Start", pages: guide("why", "first-run", "your-agent", "hardware") },
  { title: "Concepts", pages: ["docs/glossary.md", ...guide("choosing-an-algorithm")] },
  {
    title: "Tasks, agents, rewards",
    pages: guide(
      "data-and-rewards",
      "agents",
      "agent-sdks",
      "environments",
      "harbor",
      "scoring",
      "scorers",
      "rows-and-traces",
      "images",
      "reply-formats",
    ),
  },
  {
    title: "Train",
    pages: guide(
      "training",
      "is-it-learning",
      "troubleshooting",
      "viewing",
      "metrics",
      "evaluating",
      "fine-tuning",
      "distillation",
      "asynchronous-training",
    ),
  },
  {
    title: "Hardware and backends",
    pages: guide("one-gpu", "several-processes", "inference-servers", "verl", "serving", "performance"),
  },
  { title: "Deploy", pages: guide("after-training") },
  { title: "Recipes", pages: [...guide("recipes"), ...each("examples", "README.md")], detail: true },
  { title: "Coming from", pages: guide("from-trl", "from-rllm", "from-lightrft", "openai-rft", "from-others") },
  { title: "Reference", pages: reference("README", "rllm", "blocks", "verl", "lightrft", "models", "reply-formats") },
  { title: "Skills for coding agents", pages: each("skills", "SKILL.md"), detail: true },
  {
    title: "Decisions",
    pages: [
      "docs/architecture.md",
      "worker/PROTOCOL.md",
      ...readdirSync(join(root, "docs/decisions")).map((name) => `docs/decisions/${name}`),
      "CONTRIBUTING.md",
      "CHANGELOG.md",
    ],
    detail: true,
  },
];

export const readDocument = (path: string): string => readFileSync(join(root, path), "utf8");

/** @returns the first heading of a Markdown text, without marks */
export function titleOf(text: string): string {
  return (/^# (.+)$/m.exec(text)?.[1] ?? "").replaceAll("`", "");
}

/** docs/README.md with a row for each section. */
export function homeWithContents(): string {
  const link = (path: string) => `[${titleOf(readDocument(path))}](${posix.relative(posix.dirname(home), path)})`;
  const rows = sections.map(({ title, pages }) => [title, pages.map(link).join(", ")]);
  return pageWithTables(home, [table(["subject", "pages"], rows)]);
}

/**
 * @param path of a file in the repository, such as `docs/guide/agents.md`
 * @returns the page of the site without the leading slash, such as `guide/agents`; undefined if the site has none
 */
export function pageOf(path: string): string | undefined {
  if (path === home) return "";
  const page = path
    .replace(/^docs\//, "")
    .replace(/^examples\/([^/]+)\/README\.md$/, "recipes/$1.md")
    .replace(/^skills\/([^/]+)\/SKILL\.md$/, "skills/$1.md")
    .replace(/^site\/api\//, "reference/api/");
  const isPage = page !== path || ["CHANGELOG.md", "CONTRIBUTING.md", "worker/PROTOCOL.md"].includes(path);
  return isPage ? page.replace(/(^|\/)README\.md$/, "$1").replace(/\.md$/, "") : undefined;
}

/**
 * The address on the site of a relative link.
 * @param from the file that has the link, by its path in the repository
 * @returns undefined if the link leads to a file that the site does not show
 */
export function siteLink(from: string, link: string): string | undefined {
  const [file = "", anchor] = link.split("#");
  const page = pageOf(file === "" ? from : posix.join(posix.dirname(from), file));
  if (page === undefined) return undefined;
  return `/${page}${anchor === undefined ? "" : `#${anchor}`}`;
}
