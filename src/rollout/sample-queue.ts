/**
 * Batches the model calls of many rollouts into few engine calls.
 *
 * An engine call is made when every live rollout waits for a sample, or `flushMs` after the first one began to wait.
 * Requests are sorted, so a batch does not depend on timing as long as rollouts keep step.
 */
import { setMaxListeners } from "node:events";
import type { Sample, SampleOptions, SampleRequest, Sampler } from "../backends/engine.ts";
import { yieldIfDue } from "../base/concurrency.ts";

/** The part of a sampler that rollouts use. */
export type SampleSource = Pick<Sampler, "sample" | "separate">;

/** Called for each sampled token of one request, by engines that support it. */
type TokenListener = (token: number, logprob: number) => void;

interface SampleListeners {
  onToken?: TokenListener | undefined;
  /** Called when the request leaves the queue, as a part of an engine call. */
  onStart?: () => void;
}

/** One rollout's place in the queue. */
export interface Participant {
  /** @throws the signal's reason when aborted, else what the engine threw */
  sample(request: SampleRequest, turn: number, signal: AbortSignal, listeners?: SampleListeners): Promise<Sample>;
  /** The rollout has ended: the others no longer wait for it. */
  leave(): void;
}

export interface SampleQueue {
  /** More rollouts are about to join: until released, no call is made before its `flushMs` are over. */
  hold(): () => void;
  /** @param order sorts the requests of one call: position of the task, rollout */
  join(order: readonly [task: number, rollout: number]): Participant;
}

interface Call {
  order: readonly number[];
  request: SampleRequest;
  listeners: SampleListeners;
  settle(result: { sample: Sample } | { error: unknown }): void;
  /** Called when the caller gives up; set once the engine has the call. */
  abandoned?: () => void;
}

function byOrder(left: Call, right: Call): number {
  const differences = left.order.map((part, index) => part - (right.order[index] ?? part));
  return differences.find((difference) => difference !== 0) ?? 0;
}

/** @param flushMs 0: only calls of the same turn of the event loop are batched */
export function createSampleQueue(sampler: SampleSource, flushMs = 20): SampleQueue {
  // A new set for each engine call: one that is emptied and filled again keeps old calls alive in its outgrown tables
  // until the next full garbage collection.
  let pending = new Set<Call>();
  /** Live rollouts that are not waiting for a sample. */
  let busy = 0;
  let timer: NodeJS.Timeout | undefined;
  let checking = false;

  function consider(): void {
    if (pending.size === 0) {
      clearTimeout(timer);
      timer = undefined;
      return;
    }
    timer ??= setTimeout(flush, flushMs);
    // Decided after this turn of the event loop: a rollout may be about to make a second call.
    if (checking) return;
    checking = true;
    setImmediate(() => {
      checking = false;
      if (busy === 0 || flushMs === 0) flush();
    });
  }

  function flush(): void {
    clearTimeout(timer);
    timer = undefined;
    if (pending.size === 0) return;
    const calls = [...pending].sort(byOrder);
    pending = new Set();
    void runCall(sampler, calls);
  }

  return {
    hold() {
      busy++;
      return () => {
        busy--;
        consider();
      };
    },
    join(order) {
      let outstanding = 0;
      let left = false;
      busy++;
      const session = {};
      const change = (by: 1 | -1) => {
        const before = outstanding > 0;
        outstanding += by;
        if (!left && before !== outstanding > 0) busy += before ? 1 : -1;
        consider();
      };
      return {
        sample: (request, turn, signal, listeners = {}) =>
          new Promise<Sample>((resolve, reject) => {
            if (signal.aborted) return reject(signal.reason);
            const call: Call = {
              order: [...order, turn],
              request: { ...request, signal, session },
              listeners,
              settle(result) {
                signal.removeEventListener("abort", giveUp);
                pending.delete(call);
                change(-1);
                if ("sample" in result) resolve(result.sample);
                else reject(result.error);
              },
            };
            const giveUp = () => {
              call.settle({ error: signal.reason });
              call.abandoned?.();
            };
            signal.addEventListener("abort", giveUp, { once: true });
            if (sampler.separate) void runCall(sampler, [call]);
            else pending.add(call);
            change(1);
          }),
        leave() {
          if (left) return;
          left = true;
          if (outstanding === 0) busy--;
          consider();
        },
      };
    },
  };
}

/** Gives each caller its sample as it finishes. Stops the engine's work when no caller is waiting. */
async function runCall(sampler: SampleSource, calls: readonly Call[]): Promise<void> {
  const waiting = new Set(calls);
  // One call alone ends with its own signal.
  const abort = calls.length === 1 ? undefined : new AbortController();
  if (abort) setMaxListeners(0, abort.signal);
  for (const call of calls) {
    call.listeners.onStart?.();
    call.abandoned = () => {
      waiting.delete(call);
      if (waiting.size === 0) abort?.abort();
    };
  }
  const signal = abort?.signal ?? calls[0]?.request.signal;
  const settle = (call: Call, result: Parameters<Call["settle"]>[0]) => {
    if (waiting.delete(call)) call.settle(result);
  };
  let failure: unknown = new Error("the engine ended the call without answering it");
  try {
    const requests = calls.map((call) => call.request);
    // Reporting tokens costs the engine a message per step, so only where a caller listens.
    const onToken: SampleOptions["onToken"] = (index, token, logprob) => {
      const call = calls[index];
      if (call && waiting.has(call)) call.listeners.onToken?.(token, logprob);
    };
    const options: SampleOptions = {};
    if (signal) options.signal = signal;
    if (calls.some((call) => call.listeners.onToken)) options.onToken = onToken;
    for await (const sample of sampler.sample(requests, options)) {
      const call = calls[sample.request];
      if (call === undefined) throw new Error(`the engine answered a request ${sample.request} that was not made`);
      const aborted = sample.stopReason === "aborted";
      const pause = yieldIfDue();
      if (pause) await pause;
      settle(call, aborted ? { error: new Error("the engine aborted the sample") } : { sample });
    }
  } catch (error) {
    failure = error;
  }
  for (const call of [...waiting]) settle(call, { error: failure });
}
