/**
 * Policies that sample from frozen weights. A live model's policy samples with the weights that it last published, also
 * while it is trained, so it serves the newest snapshot of its weights. A snapshot gets a policy of its own, opened on first
 * use and closed when others need the room, after the live one publishes other weights or is closed.
 */
import type { Engine, Policy } from "../../backends/engine.ts";
import { UserError } from "../../errors.ts";
import type { Snapshot } from "../state/records.ts";
import type { Store } from "../state/store.ts";
import { type EngineSupervisor, type LazyPolicy, lazyPolicy } from "./engine-supervisor.ts";

/** `scores` also calls `forward`, `mostLikely` and `draws`, which on a live policy use the weights in training. */
export type SnapshotUse = "samples" | "scores";

interface Entry {
  policy: LazyPolicy;
  users: number;
}

/** Unused policies that stay open. */
const maxIdle = 4;

export function createSnapshotPool(store: Store) {
  // In the order of their last use.
  const entries = new Map<string, Entry>();

  async function open(engine: Engine, { data, adapter }: Snapshot): Promise<Policy> {
    const policy = await engine.createPolicy({ adapter });
    try {
      await policy.sampler.load(await policy.learner.loadState(store.folderOf(data), { optimizer: false }));
      return policy;
    } catch (error) {
      await policy.learner.close();
      throw error;
    }
  }

  function closeIdle(): void {
    const idle = [...entries].filter(([, { users }]) => users === 0);
    for (const [data, { policy }] of idle.slice(0, Math.max(0, idle.length - maxIdle))) {
      entries.delete(data);
      // An engine that has died has closed it already.
      policy.close().catch(() => {});
    }
  }

  return {
    /** Runs `use` with the policy of these weights. */
    async use<T>(
      { supervisor, published }: { supervisor: EngineSupervisor; published: PublishedPolicies },
      snapshot: Snapshot,
      how: SnapshotUse,
      use: (policy: Policy) => Promise<T>,
    ): Promise<T> {
      const { data } = snapshot;
      const live = how === "samples" ? published.borrow(data) : undefined;
      if (live) {
        try {
          return await use(live.policy);
        } finally {
          live.giveBack();
        }
      }
      const entry = entries.get(data) ?? {
        policy: lazyPolicy(supervisor, (engine) => open(engine, snapshot)),
        users: 0,
      };
      entries.delete(data);
      entries.set(data, entry);
      entry.users++;
      try {
        const policy = await entry.policy.get().catch((cause: unknown) => {
          if (cause instanceof UserError)
            throw new UserError(`the sampler's weights cannot be opened: ${cause.message}`, { cause });
          throw cause;
        });
        return await use(policy);
      } finally {
        entry.users--;
        closeIdle();
      }
    },
    /** Folders that are in use. */
    get inUse(): ReadonlySet<string> {
      return new Set(entries.keys());
    },
    get size() {
      return entries.size;
    },
  };
}

interface Published {
  policy: Policy;
  data: string;
  /** The engine's deaths at the time of publishing: policies from before the last one are gone. */
  deaths: number;
  users: number;
  closed: boolean;
}

export type PublishedPolicies = ReturnType<typeof createPublishedPolicies>;

export function createPublishedPolicies(supervisor: EngineSupervisor) {
  const published = new Map<Policy, Published>();

  return {
    /**
     * Publishes the policy's weights, saved in the folder `data`, so that it samples with them. Does nothing while others
     * sample from the policy: they keep their weights, and the new weights get a policy of their own.
     */
    async publish(policy: Policy, data: string): Promise<void> {
      if (!supervisor.facts.capabilities.frozenSampler.lora) return;
      if ((published.get(policy)?.users ?? 0) > 0) return;
      published.delete(policy);
      const { deaths } = supervisor;
      await policy.sampler.load(await policy.learner.publish());
      published.set(policy, { policy, data, deaths, users: 0, closed: false });
    },
    /** A policy that samples with the weights of `data`, until it is given back; undefined if there is none. */
    borrow(data: string): { policy: Policy; giveBack(): void } | undefined {
      for (const [policy, { deaths }] of published) if (deaths !== supervisor.deaths) published.delete(policy);
      const entry = [...published.values()].find((each) => each.data === data);
      if (!entry) return undefined;
      entry.users++;
      return {
        policy: entry.policy,
        giveBack() {
          entry.users--;
          // An engine that has died has closed it already.
          if (entry.users === 0 && entry.closed) entry.policy.learner.close().catch(() => {});
        },
      };
    },
    /** Closes the policy when the last request that samples from it has ended. */
    async close(policy: Policy): Promise<void> {
      const entry = published.get(policy);
      published.delete(policy);
      if (!entry || entry.users === 0) return policy.learner.close();
      entry.closed = true;
    },
  };
}
