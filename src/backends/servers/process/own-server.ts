/** An engine whose samplers use a server that Hone started: the server's end is the engine's. */
import { setTimeout as sleep } from "node:timers/promises";
import type { Engine, Sampler } from "../../engine.ts";
import type { ServerProcess } from "./server-process.ts";

/** A server that does not answer any more may need this long to end. */
const endingMs = 15_000;

/** @param engine samples from the server; it is closed first */
export function ownServer(engine: Engine, server: ServerProcess): Engine {
  const reasonOf = async (error: unknown) =>
    (await server.answers())
      ? error
      : ((await Promise.race([server.died, sleep(endingMs, undefined, { ref: false })])) ?? error);

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
