import { Ajv, type ValidateFunction } from "ajv";
import { codeBlock } from "./code/code-block.ts";
import { type Grade, grade, quote } from "./grade.ts";

const compiled = new WeakMap<object, ValidateFunction>();

/**
 * 1 when a reply is JSON that the schema allows, else 0; a reply that is one fenced block counts as what is in it.
 * Schemas come from the experiment, not from the model: their patterns run on this thread.
 *
 * @param schema JSON Schema (draft 7)
 * @throws Error when the schema is none
 * @example matchesSchema('{"city": "Bern"}', { type: "object", required: ["city"] }).reward // 1
 */
export function matchesSchema(reply: string, schema: object): Grade {
  const validate = compiled.get(schema) ?? new Ajv({ allErrors: true, strict: false }).compile(schema);
  compiled.set(schema, validate);
  let value: unknown;
  try {
    value = JSON.parse(codeBlock(reply)?.code ?? reply);
  } catch (error) {
    return grade(false, `${quote(reply)} is no JSON: ${(error as Error).message}`);
  }
  if (validate(value)) return grade(true, "is JSON that the schema allows");
  const wrong = (validate.errors ?? []).map(({ instancePath, message }) => `${instancePath || "it"} ${message}`);
  return grade(false, wrong.slice(0, 5).join("; "));
}
