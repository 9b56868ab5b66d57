/** An engine that a test can end at any instant. */
import type { Engine } from "../backends/engine.ts";
import { EngineDied } from "../backends/engine-died.ts";

/** The engine, with policies that never answer again once it has died; after `stall` they answer by its death alone. */
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
        const policy = await mortal(engine.createPolicy(spec));
        return {
          ...policy,
          forward: (...args) => mortal(policy.forward(...args)),
          forwardBackward: (...args) => mortal(policy.forwardBackward(...args)),
          optimStep: (...args) => mortal(policy.optimStep(...args)),
          saveState: (...args) => mortal(policy.saveState(...args)),
          loadState: (...args) => mortal(policy.loadState(...args)),
          async *sample(requests, options) {
            await mortal(Promise.resolve());
            yield* policy.sample(requests, options);
          },
        };
      },
    },
  };
}
