/**
 * Keeps an engine there: one that has died is opened again. Its policies are gone with it; whoever holds one sees that
 * by `life`, and opens another.
 */
import type { Engine, Policy } from "../../backends/engine.ts";
import { EngineDied } from "../../backends/engine-died.ts";

export interface EngineKeeper {
  /** Which model it holds and what it can do: the same in every life. */
  readonly facts: Pick<Engine, "model" | "capabilities">;
  /** Grows with every death. */
  readonly life: number;
  /** It died too often, or cannot be opened again: the engine is gone for good. */
  readonly lost: boolean;
  /** The engine, once it is there. @throws EngineDied when it is lost */
  ready(): Promise<Engine>;
  /** No more is opened. */
  stop(): void;
}

export interface KeeperOptions {
  /** Without it a dead engine stays dead. */
  reopen?: (() => Promise<Engine>) | undefined;
  onDeath?: (error: Error, opensAgain: boolean) => void;
  onBack?: (seconds: number) => void;
  now?: () => number;
}

/** An engine that has died so often, each time this soon after it was there, dies of what it is asked for. */
const most = { deaths: 4, withinMs: 60_000 };

export function keepEngine(first: Engine, options: KeeperOptions = {}): EngineKeeper {
  const { reopen, onDeath, onBack, now = () => performance.now() } = options;
  let current = Promise.resolve(first);
  let life = 0;
  let earlyDeaths = 0;
  let lost = false;
  let stopped = false;

  async function open(reason: Error): Promise<Engine> {
    const begin = now();
    const engine = await reopen!().catch((cause: unknown) => {
      const text = cause instanceof Error ? cause.message : String(cause);
      lost = true;
      const error = new EngineDied(`${reason.message}\nIt cannot be started again: ${text}`, { cause });
      onDeath?.(error, false);
      throw error;
    });
    onBack?.((now() - begin) / 1000);
    watch(engine);
    return engine;
  }

  function watch(engine: Engine): void {
    const born = now();
    void engine.died?.then((reason) => {
      if (stopped) return;
      life++;
      earlyDeaths = now() - born < most.withinMs ? earlyDeaths + 1 : 0;
      lost = reopen === undefined || earlyDeaths >= most.deaths;
      onDeath?.(reason, !lost);
      current = lost ? Promise.reject(reason) : open(reason);
      // Requests that need it fail with the reason.
      current.catch(() => {});
    });
  }

  watch(first);
  return {
    facts: first,
    get life() {
      return life;
    },
    get lost() {
      return lost;
    },
    ready: () => current,
    stop() {
      stopped = true;
    },
  };
}

export interface LazyPolicy {
  /** Opens it when it is not there. */
  get(): Promise<Policy>;
  close(): Promise<void>;
  readonly open: boolean;
}

export interface LazyPolicyOptions {
  /** Called before it is opened again: what it held beyond `open` is gone. */
  onLost?: () => void;
  /** Closes it, for one that others may use too. */
  close?: (policy: Policy) => Promise<void>;
}

/** A policy that is opened when it is first needed, and again after its engine has died. */
export function lazyPolicy(
  keeper: EngineKeeper,
  open: (engine: Engine) => Promise<Policy>,
  { onLost = () => {}, close = ({ learner }) => learner.close() }: LazyPolicyOptions = {},
): LazyPolicy {
  let held: { policy: Promise<Policy>; life: number } | undefined;
  return {
    async get() {
      if (held && held.life !== keeper.life) {
        held = undefined;
        onLost();
      }
      held ??= { policy: keeper.ready().then(open), life: keeper.life };
      const mine = held;
      try {
        return await mine.policy;
      } catch (error) {
        // The next that asks may find more memory.
        if (held === mine) held = undefined;
        throw error;
      }
    },
    async close() {
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
