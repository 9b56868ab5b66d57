import { Ajv, type ValidateFunction } from "ajv";
import { codeBlock } from "../code/code-block.ts";
import { type Grade, grade, quote } from "../grade.ts";
import { gradeOffThread, gradeOrZero } from "../grade-off-thread.ts";

/**
 * 1 if a reply, or its last fenced block, is JSON that the schema allows, else 0. The check runs in a thread for at most
 * 5 s, since patterns, `uniqueItems` and recursion can take exponential time.
 *
 * @param schema JSON Schema (draft 7)
 * @throws Error if the schema is not valid
 * @example (await matchesSchema('{"city": "Bern"}', { type: "object", required: ["city"] })).reward // 1
 */
export const matchesSchema = (reply: string, schema: object): Promise<Grade> =>
  onAnotherThread(reply, JSON.stringify(schema), "the schema");

const onAnotherThread = gradeOffThread<string>(import.meta.url, "matchesSchemaOnThisThread");

/** The schemas of this thread, by their JSON. */
const compiled = new Map<string, ValidateFunction>();

export function matchesSchemaOnThisThread(reply: string, schema: string): Grade {
  const validate = compiled.get(schema) ?? new Ajv({ strict: false, ownProperties: true }).compile(JSON.parse(schema));
  compiled.set(schema, validate);
  let value: unknown;
  try {
    value = JSON.parse(codeBlock(reply)?.code ?? reply);
  } catch (error) {
    return grade(false, `${quote(reply)} is not JSON: ${(error as Error).message}`);
  }
  return gradeOrZero(() => {
    if (validate(value)) return grade(true, "is JSON that the schema allows");
    const [wrong] = validate.errors ?? [];
    return grade(false, `${wrong?.instancePath || "it"} ${wrong?.message}`);
  }, "the schema");
}
