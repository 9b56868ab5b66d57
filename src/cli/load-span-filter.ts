/** The function of a user's file that changes spans before they are stored. */
import { resolve } from "node:path";
import { UserError } from "../errors.ts";
import type { TraceFilter } from "../gateway/traces/otlp.ts";
import { importModule } from "../import-module.ts";

export const spanFilterHelp =
  "a file whose default export changes each span's trace before it is stored, e.g. removes personal data; null leaves it out";

export async function loadSpanFilter(file: string | undefined): Promise<TraceFilter | undefined> {
  if (file === undefined) return undefined;
  const { default: filter } = await importModule(resolve(file));
  if (typeof filter === "function") return filter as TraceFilter;
  throw new UserError(`${file} has no function as its default export`, {
    hint: "write: export default (trace) => ({ ...trace, messages: redact(trace.messages), reply: redact(trace.reply) })",
  });
}
