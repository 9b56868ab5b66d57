/** Restarts an engine that has died. Its policies are gone: their owners see another number of `deaths` and open new ones. */
import type { Engine, Policy } from "../../backends/engine.ts";
import { EngineDied } from "../../backends/engine-died.ts";
import { messageOf, UserError } from "../../errors.ts";

export interface SupervisorOptions {
  /** Without it a dead engine stays dead. */
  reopen?: (() => Promise<Engine>) | undefined;
  onDeath?: (error: Error, opensAgain: boolean) => void;
  onBack?: (seconds: number) => void;
  now?: () => number;
}

/** An engine that dies this often, each time this soon after its start or during it, is not reopened. */
const restartLimit = { earlyDeaths: 4, withinMs: 60_000 };

export type EngineSupervisor = ReturnType<typeof superviseEngine>;

export function superviseEngine(first: Engine, options: SupervisorOptions = {}) {
  const { reopen, onDeath, onBack, now = () => performance.now() } = options;
  let current = Promise.resolve(first);
  let deaths = 0;
  let earlyDeaths = 0;
  let lost = false;
  let stopped = false;

  /** Tries again after each failure, except one that the next start would repeat. */
  async function open(): Promise<Engine> {
    const begin = now();
    for (;;) {
      try {
        const engine = await reopen!();
        onBack?.((now() - begin) / 1000);
        watch(engine);
        return engine;
      } catch (cause) {
        const error = new EngineDied(`its restart failed: ${messageOf(cause)}`, { cause });
        earlyDeaths++;
        lost = stopped || cause instanceof UserError || earlyDeaths >= restartLimit.earlyDeaths;
        if (!stopped) onDeath?.(error, !lost);
        if (lost) throw error;
      }
    }
  }

  function watch(engine: Engine): void {
    const begin = now();
    void engine.died?.then((reason) => {
      if (stopped) return;
      deaths++;
      earlyDeaths = now() - begin < restartLimit.withinMs ? earlyDeaths + 1 : 0;
      lost = reopen === undefined || earlyDeaths >= restartLimit.earlyDeaths;
      onDeath?.(reason, !lost);
      current = lost ? Promise.reject(reason) : open();
      // Requests that need it fail with the reason.
      current.catch(() => {});
    });
  }

  watch(first);
  return {
    /** Which model it holds and what it can do: the same after a restart. */
    facts: first as Pick<Engine, "model" | "capabilities">,
    get deaths() {
      return deaths;
    },
    /** It died too often, or cannot be opened again. */
    get lost() {
      return lost;
    },
    /** @throws EngineDied when the engine is lost */
    ready: () => current,
    /** Opens no more engines. */
    stop() {
      stopped = true;
    },
  };
}

export type LazyPolicy = ReturnType<typeof lazyPolicy>;

interface LazyPolicyOptions {
  /** Called before the policy is opened again; state that `open` does not restore is lost. */
  onLost?: () => void;
  /** Closes a policy that others may use too. */
  close?: (policy: Policy) => Promise<void>;
}

/** A policy that is opened when it is first needed, and again after its engine has died. */
export function lazyPolicy(
  supervisor: EngineSupervisor,
  open: (engine: Engine) => Promise<Policy>,
  { onLost = () => {}, close = ({ learner }) => learner.close() }: LazyPolicyOptions = {},
) {
  let held: { policy: Promise<Policy>; deaths: number } | undefined;
  return {
    async get(): Promise<Policy> {
      if (held && held.deaths !== supervisor.deaths) {
        held = undefined;
        onLost();
      }
      held ??= { policy: supervisor.ready().then(open), deaths: supervisor.deaths };
      const mine = held;
      try {
        return await mine.policy;
      } catch (error) {
        // The next request may find more memory.
        if (held === mine) held = undefined;
        throw error;
      }
    },
    async close(): Promise<void> {
      const closing = held;
      held = undefined;
      if (closing?.deaths !== supervisor.deaths) return;
      const policy = await closing.policy.catch(() => undefined);
      if (policy) await close(policy);
    },
    get open() {
      return held !== undefined && held.deaths === supervisor.deaths;
    },
  };
}
