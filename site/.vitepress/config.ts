/** The site of the documentation. Its pages are the Markdown files of the repository, in the order of `site-map.ts`. */
import { cpSync, existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join, posix, relative } from "node:path";
import { fileURLToPath } from "node:url";
import type { Plugin } from "vite";
import { type DefaultTheme, defineConfig } from "vitepress";
import { githubSlug } from "../../scripts/maintain/docs/github-slug.ts";
import { llmsText } from "../../scripts/maintain/docs/llms-text.ts";
import { home, pageOf, sections, siteLink, titleOf } from "../../scripts/maintain/docs/site-map.ts";

const root = fileURLToPath(new URL("../..", import.meta.url));
const read = (path: string) => readFileSync(join(root, path), "utf8");
/** In the folder of the server that shows the site, e.g. /hone/. */
const base = process.env.SITE_BASE ?? "/";

const pages = sections.flatMap((section) => section.pages).filter((path) => existsSync(join(root, path)));
const item = (path: string): DefaultTheme.SidebarItem => ({ text: titleOf(read(path)), link: `/${pageOf(path)}` });
const sidebar = sections.map(
  ({ title, pages: listed, detail = false }): DefaultTheme.SidebarItem => ({
    text: title,
    collapsed: detail,
    items: [
      ...listed.filter((path) => pages.includes(path)).map(item),
      ...(title === "Reference" ? [{ text: "API", link: "/reference/api/" }] : []),
    ],
  }),
);

/** Files that pages link to and that are not pages, such as scripts. The build has them as text, which a browser shows. */
const sources = new Set<string>();
function sourceLink(file: string): string {
  if (!existsSync(join(root, file))) throw new Error(`${file} does not exist`);
  sources.add(file);
  return `/source/${file}.txt`;
}

/** Vue is in the folder of the site, but Vite looks for it in that of the pages, the repository's. */
const vueOfSite: Plugin = {
  name: "vue-of-site",
  enforce: "pre",
  resolveId(name, importer, { ssr }) {
    if (!/^vue(\/|$)/.test(name)) return null;
    if (ssr) return { id: name, external: true };
    return importer?.includes("/node_modules/")
      ? null
      : this.resolve(name, join(root, "site/package.json"), { skipSelf: true });
  },
};

export default defineConfig({
  title: "Hone",
  description: JSON.parse(read("package.json")).description,
  lang: "en-US",
  base,
  head: [["link", { rel: "icon", href: "data:," }]],
  srcDir: "..",
  // All other Markdown of the repository.
  srcExclude: [
    "README.md",
    "{bench,config,conformance,create-hone-rl,dist,node_modules,runs,scripts,src,web}/**",
    "site/*.md",
    ".hone/**",
  ],
  rewrites: (path) => {
    const page = pageOf(path);
    return page === undefined ? path : `${page}${page === "" || page.endsWith("/") ? "index" : ""}.md`;
  },
  cleanUrls: true,
  // The largest chunk is the index of the search, which is loaded when it opens.
  vite: { plugins: [vueOfSite], build: { chunkSizeWarningLimit: 2000 } },
  markdown: {
    anchor: { slugify: githubSlug },
    config(markdown) {
      markdown.core.ruler.push("links-of-the-repository", ({ tokens, env }) => {
        const from = relative(root, env.realPath ?? env.path).replaceAll("\\", "/");
        for (const token of tokens.flatMap(({ children }) => children ?? [])) {
          const href = token.type === "link_open" ? (token.attrGet("href") ?? "") : "";
          if (href === "" || /^[a-z]+:|^\/|^#/.test(href)) continue;
          token.attrSet("href", siteLink(from, href) ?? sourceLink(posix.join(posix.dirname(from), href)));
        }
      });
    },
  },
  transformPageData(page) {
    if (page.relativePath !== "index.md") return;
    page.title = "Hone";
    page.frontmatter = {
      ...page.frontmatter,
      layout: "home",
      hero: {
        name: "Hone",
        text: "Train the agent that you ship",
        tagline: "Reinforcement learning for language models and agents, from TypeScript. It starts on a CPU.",
        actions: [
          { text: "Two minutes on a CPU", link: "/guide/first-run" },
          { theme: "alt", text: "Your agent in ten minutes", link: "/guide/your-agent" },
          { theme: "alt", text: "Why Hone", link: "/guide/why" },
        ],
      },
    };
  },
  themeConfig: {
    nav: [
      { text: "Start", link: "/guide/first-run" },
      { text: "Recipes", link: "/guide/recipes" },
      { text: "Configuration", link: "/reference/" },
      { text: "API", link: "/reference/api/" },
    ],
    sidebar,
    outline: [2, 3],
    search: {
      provider: "local",
      options: {
        // A page of the guide answers more questions than one of the API that has the same words.
        miniSearch: { searchOptions: { boostDocument: (id: string) => (/\/(guide|recipes)\//.test(id) ? 2 : 1) } },
      },
    },
  },
  /** For programs that read the documentation: llms.txt, all pages in one file, and each page as Markdown. */
  buildEnd({ outDir }) {
    const all = [home, ...pages];
    const copy = (path: string, name: string) => {
      mkdirSync(dirname(join(outDir, name)), { recursive: true });
      cpSync(join(root, path), join(outDir, name));
    };
    for (const path of sources) copy(path, `source/${path}.txt`);
    const addressOf = (path: string) => `${pageOf(path) || "index"}`.replace(/\/$/, "/index");
    for (const path of all) copy(path, `${addressOf(path)}.md`);
    const addressed = llmsText().replace(/\]\(([^)]+)\)/g, (_, path: string) => `](${base}${addressOf(path)}.md)`);
    writeFileSync(join(outDir, "llms.txt"), addressed);
    const whole = all.map((path) => `<!-- ${path} -->\n\n${read(path).trim()}\n`);
    writeFileSync(join(outDir, "llms-full.txt"), whole.join("\n"));
  },
});
