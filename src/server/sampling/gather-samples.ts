/**
 * Makes one engine call of what one client asks for at the same time: the batch begins whole then, as it would in the
 * client's own process, where it would begin with a part of it and let the others join at later tokens.
 */
import { setMaxListeners } from "node:events";
import type { Sample, SampleRequest, Sampler } from "../../backends/engine.ts";
import { RunError } from "../../errors.ts";

export interface SampleGatherer {
  /**
   * The samples of the requests, in their order.
   * @param owner whose requests may be put together: what fails one fails all
   */
  sample(
    sampler: Sampler,
    owner: string,
    requests: readonly SampleRequest[],
    signal: AbortSignal,
  ): Promise<readonly Sample[]>;
}

interface Call {
  requests: readonly SampleRequest[];
  ended: Sample[];
  missing: number;
  resolve(samples: Sample[]): void;
  reject(error: unknown): void;
}

export function createSampleGatherer(): SampleGatherer {
  /** What was asked for in this turn of the event loop. */
  const open = new Map<Sampler, Map<string, Call[]>>();

  function begin(sampler: Sampler): void {
    const byOwner = open.get(sampler)!;
    open.delete(sampler);
    for (const calls of byOwner.values()) void run(sampler, calls);
  }

  return {
    sample: (sampler, owner, requests, signal) =>
      new Promise((resolve, reject) => {
        // The engine listens once for each sequence.
        setMaxListeners(0, signal);
        const own = requests.map((request) => ({ ...request, signal }));
        const call: Call = { requests: own, ended: [], missing: own.length, resolve, reject };
        let byOwner = open.get(sampler);
        if (!byOwner) {
          byOwner = new Map();
          open.set(sampler, byOwner);
          setImmediate(begin, sampler);
        }
        const calls = byOwner.get(owner);
        if (calls) calls.push(call);
        else byOwner.set(owner, [call]);
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
