/** An engine that samples from a server that Hone started. If the server ends, the engine has ended. */
import { setTimeout as sleep } from "node:timers/promises";
import { RunError } from "../../../errors.ts";
import type { Engine, Sampler } from "../../engine.ts";
import type { ServerProcess } from "./server-process.ts";

/**
 * @param engine samples from the server, and is closed before it
 * @param endingMs time to wait for the end of a server that no longer answers
 */
export function ownServer(engine: Engine, server: ServerProcess, endingMs = 15_000): Engine {
  const reasonOf = async (error: unknown) =>
    (await server.answers())
      ? error
      : ((await Promise.race([server.died, sleep(endingMs, undefined, { ref: false })])) ?? hanging(error));

  const explained = (sampler: Sampler): Sampler => ({
    ...sampler,
    get version() {
      return sampler.version;
    },
    async *sample(requests, options) {
      try {
        yield* sampler.sample(requests, options);
      } catch (error) {
        throw await reasonOf(error);
      }
    },
    async load(published) {
      await sampler.load(published).catch(async (error: unknown) => {
        throw await reasonOf(error);
      });
    },
  });

  return {
    ...engine,
    get model() {
      return engine.model;
    },
    async createPolicy(spec) {
      try {
        const { learner, sampler } = await engine.createPolicy(spec);
        return { learner, sampler: explained(sampler) };
      } catch (error) {
        throw await reasonOf(error);
      }
    },
    died: engine.died ? Promise.race([engine.died, server.died]) : server.died,
    async close() {
      try {
        await engine.close();
      } finally {
        await server.stop();
      }
    },
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
