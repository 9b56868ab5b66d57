import { z } from "zod";
import { UserError } from "../errors.ts";

/** @throws UserError that names the field */
export function readBody<S extends z.ZodType>(schema: S, body: unknown): z.output<S> {
  const parsed = schema.safeParse(body);
  if (!parsed.success) throw new UserError(z.prettifyError(parsed.error));
  return parsed.data;
}
