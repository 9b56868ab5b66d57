/** The API reference: a page for each export of the package, from the docstrings. The entry points are those of package.json. */
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const path = (/** @type {string} */ name) => fileURLToPath(new URL(name, import.meta.url));

/** @type {{exports: Record<string, string | {default: string}>}} */
const { exports } = JSON.parse(readFileSync(path("../package.json"), "utf8"));
export const entryPoints = Object.entries(exports).flatMap(([name, target]) =>
  typeof target === "string" ? [] : [{ name, file: target.default.replace("./dist/", "src/").replace(/\.js$/, ".ts") }],
);

export default {
  entryPoints: entryPoints.map(({ file }) => path(`../${file}`)),
  tsconfig: path("../tsconfig.json"),
  plugin: ["typedoc-plugin-markdown", path("typedoc-names.mjs")],
  out: path("api"),
  name: "API",
  readme: "none",
  router: "member",
  entryFileName: "README",
  // Types that the exports mention but that nobody imports have no page.
  validation: false,
  skipErrorChecking: true,
  disableSources: true,
  excludeExternals: true,
  excludePrivate: true,
  excludeInternal: true,
  hidePageHeader: true,
  hideBreadcrumbs: true,
  useCodeBlocks: true,
  indexFormat: "table",
  parametersFormat: "table",
  interfacePropertiesFormat: "table",
  classPropertiesFormat: "table",
  typeDeclarationFormat: "table",
  propertyMembersFormat: "table",
};
