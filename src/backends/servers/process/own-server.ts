/** Explains failures of requests to a server that Hone started by the server's end. */
import { setTimeout as sleep } from "node:timers/promises";
import { RunError } from "../../../errors.ts";
import type { Engine, Sampler } from "../../engine.ts";
import type { ServerProcess } from "./server-process.ts";

type Ending = Pick<ServerProcess, "answers" | "died">;

/** Milliseconds to wait for the end of a server that no longer answers. */
const defaultEndingMs = 15_000;

/** @returns why a request to the server failed: the error itself if the server still answers */
export async function explain(error: unknown, server: Ending, endingMs = defaultEndingMs): Promise<unknown> {
  if (await server.answers()) return error;
  const death = await Promise.race([server.died, sleep(endingMs, undefined, { ref: false })]);
  return death ?? hanging(error);
}

/** Creates policies whose samplers sample from the server. */
export function explainedBy(
  server: Ending,
  createPolicy: Engine["createPolicy"],
  endingMs = defaultEndingMs,
): Engine["createPolicy"] {
  const rethrow = async (error: unknown): Promise<never> => {
    throw await explain(error, server, endingMs);
  };
  const explained = (sampler: Sampler): Sampler => ({
    ...sampler,
    get version() {
      return sampler.version;
    },
    async *sample(requests, options) {
      try {
        yield* sampler.sample(requests, options);
      } catch (error) {
        await rethrow(error);
      }
    },
    load: (published) => sampler.load(published).catch(rethrow),
  });
  return async (spec) => {
    const { learner, sampler } = await createPolicy(spec).catch(rethrow);
    return { learner, sampler: explained(sampler) };
  };
}

/** The hint if a server that Hone started neither answers nor ends. */
function hanging(error: unknown): unknown {
  if (!(error instanceof RunError) || error.code !== "server_unreachable") return error;
  const { message, code } = error;
  return new RunError(message, {
    code,
    hint: "see server.log in the run folder, and continue with --resume",
    cause: error,
  });
}
