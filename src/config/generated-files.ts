/** Every file that is generated from the schema, by its path in the repository. A test compares them with what is there. */
import { baseYaml } from "./base-yaml.ts";
import { configJsonSchema } from "./json-schema.ts";
import { referencePages } from "./reference.ts";

/** In the order in which they are to be written: the pages show what is composed from base.yaml. */
export const generatedFiles: Readonly<Record<string, () => string>> = {
  "config/rllm/base.yaml": baseYaml,
  "config/hone.schema.json": () => `${JSON.stringify(configJsonSchema(), null, 1)}\n`,
  ...referencePages,
};
