/** Whether a reply is the JSON that its client wished for. It is answered either way; the shares are metrics. */
import { z } from "zod";
import type { Notices } from "../notices.ts";
import { type Body, badParameter } from "../read-parameters.ts";
import type { JsonWish } from "./guarantees.ts";

/** Compiled schemas by their text: an agent sends the same one with each call. */
const compiled = new Map<string, z.ZodType>();
const mostCompiled = 100;

/** @throws GatewayError when the schema is none */
export function checkedWish(schema: Body | undefined, parameter: string): JsonWish {
  if (schema !== undefined) compile(schema, parameter);
  return { schema };
}

/** What is wrong with the reply, as a clause of the rollout's failure if its agent throws. */
export const jsonFault = (text: string, { schema }: JsonWish): string | undefined =>
  isWished(text, schema) ? undefined : "is not the JSON that was asked for";

export function countJson(text: string, { schema }: JsonWish, notices: Notices): void {
  if (isWished(text, schema)) notices.add("json_valid", "replies are checked against the JSON that was asked for");
  else notices.add("json_invalid", `a reply is not the JSON that was asked for: ${text.slice(0, 100)}`);
}

function isWished(text: string, schema: Body | undefined): boolean {
  try {
    const value: unknown = JSON.parse(text);
    return schema === undefined || compile(schema, "").safeParse(value).success;
  } catch {
    return false;
  }
}

function compile(schema: Body, parameter: string): z.ZodType {
  const key = JSON.stringify(schema);
  const known = compiled.get(key);
  if (known !== undefined) return known;
  try {
    const type = z.fromJSONSchema(schema as Parameters<typeof z.fromJSONSchema>[0]);
    if (compiled.size >= mostCompiled) compiled.clear();
    compiled.set(key, type);
    return type;
  } catch (error) {
    throw badParameter(
      parameter,
      `${parameter} is no usable JSON Schema: ${error instanceof Error ? error.message : error}`,
    );
  }
}
