/** Reopens an engine that has died. Its policies are gone: their owners see another `life` and open new ones. */
import type { Engine, Policy } from "../../backends/engine.ts";
import { EngineDied } from "../../backends/engine-died.ts";
import { UserError } from "../../errors.ts";

export interface KeeperOptions {
  /** Without it a dead engine stays dead. */
  reopen?: (() => Promise<Engine>) | undefined;
  onDeath?: (error: Error, opensAgain: boolean) => void;
  onBack?: (seconds: number) => void;
  now?: () => number;
}

/** An engine that dies this often, each time this soon after its start or during it, is not reopened. */
const most = { deaths: 4, withinMs: 60_000 };

export type EngineKeeper = ReturnType<typeof keepEngine>;

export function keepEngine(first: Engine, options: KeeperOptions = {}) {
  const { reopen, onDeath, onBack, now = () => performance.now() } = options;
  let current = Promise.resolve(first);
  let life = 0;
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
        const text = cause instanceof Error ? cause.message : String(cause);
        const error = new EngineDied(`its restart failed: ${text}`, { cause });
        earlyDeaths++;
        lost = stopped || cause instanceof UserError || earlyDeaths >= most.deaths;
        if (!stopped) onDeath?.(error, !lost);
        if (lost) throw error;
      }
    }
  }

  function watch(engine: Engine): void {
    const born = now();
    void engine.died?.then((reason) => {
      if (stopped) return;
      life++;
      earlyDeaths = now() - born < most.withinMs ? earlyDeaths + 1 : 0;
      lost = reopen === undefined || earlyDeaths >= most.deaths;
      onDeath?.(reason, !lost);
      current = lost ? Promise.reject(reason) : open();
      // Requests that need it fail with the reason.
      current.catch(() => {});
    });
  }

  watch(first);
  return {
    /** Which model it holds and what it can do: the same in every life. */
    facts: first as Pick<Engine, "model" | "capabilities">,
    /** Grows with every death. */
    get life() {
      return life;
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
  keeper: EngineKeeper,
  open: (engine: Engine) => Promise<Policy>,
  { onLost = () => {}, close = ({ learner }) => learner.close() }: LazyPolicyOptions = {},
) {
  let held: { policy: Promise<Policy>; life: number } | undefined;
  return {
    async get(): Promise<Policy> {
      if (held && held.life !== keeper.life) {
        held = undefined;
        onLost();
      }
      held ??= { policy: keeper.ready().then(open), life: keeper.life };
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
      if (closing?.life !== keeper.life) return;
      const policy = await closing.policy.catch(() => undefined);
      if (policy) await close(policy);
    },
    get open() {
      return held !== undefined && held.life === keeper.life;
    },
  };
}
