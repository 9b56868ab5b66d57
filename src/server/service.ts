/** What routes and features share: the parts of the server, without HTTP. */
import type { ServerContext } from "./context.ts";
import { createOperations } from "./queue/operations.ts";
import { createCompletions } from "./sampling/completions.ts";
import { createSamplers } from "./sampling/samplers.ts";
import { createSessions } from "./state/sessions.ts";

export type Service = ReturnType<typeof createService>;

export function createService(context: ServerContext) {
  const sessions = createSessions(context);
  return {
    context,
    sessions,
    samplers: createSamplers(context, sessions),
    operations: createOperations(context, sessions),
    completions: createCompletions(context.futures),
  };
}
