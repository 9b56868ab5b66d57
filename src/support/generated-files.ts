/** Every file generated from the schema, by its path in the repository. A test checks that they are up to date. */
import { baseYaml } from "../config/docs/base-yaml.ts";
import { configJsonSchema } from "../config/docs/json-schema.ts";
import { readmeWithTable } from "./backend-table.ts";
import { referencePages } from "./reference.ts";

/** In writing order: the pages show values composed from base.yaml. */
export const generatedFiles: Readonly<Record<string, () => string>> = {
  "config/rllm/base.yaml": baseYaml,
  "config/hone.schema.json": () => `${JSON.stringify(configJsonSchema(), null, 1)}\n`,
  "README.md": readmeWithTable,
  ...referencePages,
};
