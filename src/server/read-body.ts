import type { z } from "zod";
import { UserError } from "../errors.ts";

/** @throws UserError that names the field */
export function readBody<S extends z.ZodType>(schema: S, body: unknown): z.output<S> {
  const parsed = schema.safeParse(body);
  if (!parsed.success) throw new UserError(parsed.error.issues.map(describe).join("; "));
  return parsed.data;
}

/** `adam_params.learning_rate must be a number of at least 0, but is -1` */
function describe({ path, message }: z.core.$ZodIssue): string {
  const place = path.join(".");
  if (message.startsWith("must be")) return `${place} ${message}`;
  return place === "" ? message : `${place}: ${message}`;
}
