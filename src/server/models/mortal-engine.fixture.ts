/** An engine that a test can end at any instant. */
import type { Engine, Sampler } from "../../backends/engine.ts";
import { EngineDied } from "../../backends/engine-died.ts";

/** The engine, with policies that do not answer after it has died. After `stall`, a call ends only when the engine dies. */
export function mortalEngine(engine: Engine): { engine: Engine; die(): void; stall(): void } {
  const reason = new EngineDied("the worker ended by SIGKILL");
  let die = (): void => {};
  const died = new Promise<Error>((resolve) => {
    die = () => resolve(reason);
  });
  const death = died.then((error) => Promise.reject(error));
  death.catch(() => {});
  let stalled = false;
  const mortal = <T>(work: Promise<T>): Promise<T> => (stalled ? death : Promise.race([death, work]));
  return {
    die,
    stall() {
      stalled = true;
    },
    engine: {
      ...engine,
      died,
      async createPolicy(spec) {
        const { sampler, learner } = await mortal(engine.createPolicy(spec));
        return {
          sampler: Object.assign(Object.create(sampler) as Sampler, {
            async *sample(...args: Parameters<Sampler["sample"]>) {
              await mortal(Promise.resolve());
              yield* sampler.sample(...args);
            },
          }),
          learner: {
            ...learner,
            forward: (...args) => mortal(learner.forward(...args)),
            forwardBackward: (...args) => mortal(learner.forwardBackward(...args)),
            optimStep: (...args) => mortal(learner.optimStep(...args)),
            saveState: (...args) => mortal(learner.saveState(...args)),
            loadState: (...args) => mortal(learner.loadState(...args)),
          },
        };
      },
    },
  };
}
