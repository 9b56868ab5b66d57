/** The form of a trial: checked when a workflow returns it, and when it is read from a run folder. */
import { z } from "zod";

export const trials = z.strictObject({
  commands: z.array(z.strictObject({ command: z.string(), exitCode: z.number(), output: z.string() })).optional(),
  files: z.array(z.strictObject({ path: z.string(), change: z.enum(["added", "changed", "deleted"]) })).optional(),
  verifier: z.string().optional(),
});
