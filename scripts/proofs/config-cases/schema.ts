/** The format of a file of recorded compositions. */
import { z } from "zod";

const caseSchema = z.looseObject({
  id: z.string(),
  backend: z.string(),
  overrides: z.array(z.string()),
  /** Every key whose value the overrides change, with its new value. */
  changes: z.record(z.string(), z.unknown()).default({}),
  removed: z.array(z.string()).default([]),
  warnings: z.array(z.looseObject({ category: z.string(), paths: z.array(z.string()) })).default([]),
  /** Set if the recorded system failed. */
  error: z.unknown().optional(),
});

export const casesSchema = z.array(caseSchema);
export type ConfigCase = z.output<typeof caseSchema>;
