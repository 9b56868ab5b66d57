/** The configuration's JSON Schema, for editors: completion, hover text, and mistakes as one types. */
import { z } from "zod";
import { configSchema } from "./schema.ts";

/** Draft 7, which YAML language servers read. */
export function configJsonSchema(): Record<string, unknown> {
  return {
    ...z.toJSONSchema(configSchema, { io: "input", target: "draft-07" }),
    title: "Hone configuration",
  };
}
