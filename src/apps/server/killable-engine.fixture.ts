/** An engine that a test can end at any instant. */
import type { Engine, Sampler } from "../../backends/engine.ts";
import { EngineDied } from "../../backends/engine-parts.ts";

/** The engine, with policies that do not answer after it has died. After `stall`, a call ends only when the engine dies. */
export function killableEngine(engine: Engine): { engine: Engine; die(): void; stall(): void } {
  const reason = new EngineDied("the worker ended by SIGKILL");
  let die = (): void => {};
  const died = new Promise<Error>((resolve) => {
    die = () => resolve(reason);
  });
  const death = died.then((error) => Promise.reject(error));
  death.catch(() => {});
  let stalled = false;
  const untilDeath = <T>(work: Promise<T>): Promise<T> => (stalled ? death : Promise.race([death, work]));
  return {
    die,
    stall() {
      stalled = true;
    },
    engine: {
      ...engine,
      died,
      async createPolicy(spec) {
        const { sampler, learner } = await untilDeath(engine.createPolicy(spec));
        return {
          sampler: Object.assign(Object.create(sampler) as Sampler, {
            async *sample(...args: Parameters<Sampler["sample"]>) {
              await untilDeath(Promise.resolve());
              yield* sampler.sample(...args);
            },
          }),
          learner: {
            ...learner,
            forward: (...args) => untilDeath(learner.forward(...args)),
            forwardBackward: (...args) => untilDeath(learner.forwardBackward(...args)),
            optimStep: (...args) => untilDeath(learner.optimStep(...args)),
            saveState: (...args) => untilDeath(learner.saveState(...args)),
            loadState: (...args) => untilDeath(learner.loadState(...args)),
          },
        };
      },
    },
  };
}
