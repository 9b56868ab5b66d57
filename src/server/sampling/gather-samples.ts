/**
 * Turns the simultaneous requests of one client into one engine call, so that the whole batch begins together, as it does
 * in the client's own process. Otherwise it would begin with a part, and the others would join at later tokens.
 */
import { setMaxListeners } from "node:events";
import { append } from "../../append.ts";
import type { Sample, SampleRequest, Sampler } from "../../backends/engine.ts";
import { RunError } from "../../errors.ts";

interface Call {
  requests: readonly SampleRequest[];
  ended: Sample[];
  missing: number;
  resolve(samples: Sample[]): void;
  reject(error: unknown): void;
}

export type SampleGatherer = ReturnType<typeof createSampleGatherer>;

export function createSampleGatherer() {
  /** The requests of this turn of the event loop. */
  const open = new Map<Sampler, Map<string, Call[]>>();

  return {
    /**
     * The samples of the requests, in their order.
     * @param owner whose requests may be put together: an error fails all of them
     */
    sample: (
      sampler: Sampler,
      owner: string,
      requests: readonly SampleRequest[],
      signal: AbortSignal,
    ): Promise<readonly Sample[]> =>
      new Promise((resolve, reject) => {
        // The engine adds a listener for each sequence.
        setMaxListeners(0, signal);
        const own = requests.map((request) => ({ ...request, signal }));
        const call: Call = { requests: own, ended: [], missing: own.length, resolve, reject };
        const byOwner = open.get(sampler) ?? new Map<string, Call[]>();
        if (byOwner.size === 0) {
          open.set(sampler, byOwner);
          setImmediate(() => {
            open.delete(sampler);
            for (const calls of byOwner.values()) void run(sampler, calls);
          });
        }
        append(byOwner, owner, call);
      }),
  };
}

/** Answers each call when the last of its sequences has ended. */
async function run(sampler: Sampler, calls: readonly Call[]): Promise<void> {
  const places = calls.flatMap((call) => call.requests.map((_, index) => ({ call, index })));
  let failure: unknown = new RunError("the engine ended the call without answering it");
  try {
    for await (const sample of sampler.sample(calls.flatMap(({ requests }) => requests))) {
      const { call, index } = places[sample.request]!;
      call.ended[index] = sample;
      call.missing--;
      if (call.missing === 0) call.resolve(call.ended);
    }
  } catch (error) {
    failure = error;
  }
  for (const call of calls) if (call.missing > 0) call.reject(failure);
}
