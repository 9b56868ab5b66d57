/**
 * Makes one engine call of what one client asks for at the same time: the batch begins whole then, as it would in the
 * client's own process, where it would begin with a part of it and let the others join at later tokens.
 */
import { setMaxListeners } from "node:events";
import type { Policy, Sample, SampleRequest } from "../backends/engine.ts";
import { RunError } from "../errors.ts";

export interface SampleGatherer {
  /**
   * The samples of the requests, in their order.
   * @param owner whose requests may be put together: what fails one fails all
   */
  sample(
    policy: Policy,
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
  const open = new Map<Policy, Map<string, Call[]>>();

  function begin(policy: Policy): void {
    const byOwner = open.get(policy)!;
    open.delete(policy);
    for (const calls of byOwner.values()) void run(policy, calls);
  }

  return {
    sample: (policy, owner, requests, signal) =>
      new Promise((resolve, reject) => {
        // The engine listens once for each sequence.
        setMaxListeners(0, signal);
        const own = requests.map((request) => ({ ...request, signal }));
        const call: Call = { requests: own, ended: [], missing: own.length, resolve, reject };
        let byOwner = open.get(policy);
        if (!byOwner) {
          byOwner = new Map();
          open.set(policy, byOwner);
          setImmediate(begin, policy);
        }
        const calls = byOwner.get(owner);
        if (calls) calls.push(call);
        else byOwner.set(owner, [call]);
      }),
  };
}

/** Answers each call when the last of its sequences has ended. */
async function run(policy: Policy, calls: readonly Call[]): Promise<void> {
  const places = calls.flatMap((call) => call.requests.map((_, index) => ({ call, index })));
  let failure: unknown = new RunError("the engine ended the call without answering it");
  try {
    for await (const sample of policy.sample(calls.flatMap(({ requests }) => requests))) {
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
