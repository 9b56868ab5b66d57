/** Every generated file, by its path in the repository. `npm run docs` writes them. */
import { baseYaml } from "../../../src/config/base-yaml.ts";
import { configJsonSchema } from "../../../src/config/json-schema.ts";
import { guideWithTables, teacherGuideWithTable } from "./algorithm-tables.ts";
import { readmeWithTable } from "./backend-table.ts";
import { llmsText } from "./llms-text.ts";
import { oneGpuPage, performancePage } from "./memory-table.ts";
import { modelsPage } from "./models-page.ts";
import { namePages } from "./name-tables.ts";
import { referencePages } from "./reference.ts";
import { replyFormatsPage } from "./reply-formats.ts";
import { home, homeWithContents } from "./site-map.ts";

type Files = Readonly<Record<string, () => string>>;

/**
 * Pages that people read and link to in the repository, so they are in git. Only a release requires them to be up to date: a setting
 * or a loss is then one line of its own file, not also a row of four pages.
 */
export const pages: Files = {
  "README.md": readmeWithTable,
  [home]: homeWithContents,
  "docs/guide/choosing-an-algorithm.md": guideWithTables,
  "docs/guide/distillation.md": teacherGuideWithTable,
  "docs/guide/one-gpu.md": oneGpuPage,
  "docs/guide/performance.md": performancePage,
  ...namePages,
  ...referencePages,
  "docs/reference/models.md": modelsPage,
  "docs/reference/reply-formats.md": replyFormatsPage,
};

/** Files for programs and editors, which are only in the package. Nothing in the repository reads them. */
export const builtFiles: Files = {
  "config/rllm/base.yaml": baseYaml,
  "config/hone.schema.json": () => `${JSON.stringify(configJsonSchema(), null, 1)}\n`,
  "llms.txt": llmsText,
};
