/** Every file generated from the schema, by its path in the repository. A test checks that they are up to date. */

import { configJsonSchema } from "../../../src/config/json-schema.ts";
import { guideWithTables, teacherGuideWithTable } from "./algorithm-tables.ts";
import { readmeWithTable } from "./backend-table.ts";
import { baseYaml } from "./base-yaml.ts";
import { llmsText } from "./llms-text.ts";
import { oneGpuPage, performancePage } from "./memory-table.ts";
import { modelsPage } from "./models-page.ts";
import { namePages } from "./name-tables.ts";
import { referencePages } from "./reference.ts";
import { replyFormatsPage } from "./reply-formats.ts";
import { home, homeWithContents } from "./site-map.ts";

/** In writing order: the pages show values composed from base.yaml. */
export const generatedFiles: Readonly<Record<string, () => string>> = {
  "config/rllm/base.yaml": baseYaml,
  "config/hone.schema.json": () => `${JSON.stringify(configJsonSchema(), null, 1)}\n`,
  "README.md": readmeWithTable,
  [home]: homeWithContents,
  "docs/guide/choosing-an-algorithm.md": guideWithTables,
  "docs/reference/models.md": modelsPage,
  "docs/guide/distillation.md": teacherGuideWithTable,
  "docs/guide/one-gpu.md": oneGpuPage,
  "docs/guide/performance.md": performancePage,
  ...namePages,
  ...referencePages,
  "docs/reference/reply-formats.md": replyFormatsPage,
  "llms.txt": llmsText,
};
