/**
 * Policies that sample from frozen weights. The live policy that published the weights serves them until it publishes
 * others. After that they get a policy of their own, opened on first use and closed when others need the room.
 */
import type { Engine, Policy } from "../../backends/engine.ts";
import { UserError } from "../../errors.ts";
import type { Snapshot } from "../state/records.ts";
import type { Store } from "../state/store.ts";
import type { BaseModel } from "./base-models.ts";
import { type LazyPolicy, lazyPolicy } from "./engine-keeper.ts";

/** `scores` also calls `forward`, `mostLikely` and `draws`, which on a live policy use the weights in training. */
export type SnapshotUse = "samples" | "scores";

interface Entry {
  policy: LazyPolicy;
  users: number;
}

/** Unused policies that stay open. */
const mostIdle = 4;

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
    for (const [data, { policy }] of idle.slice(0, Math.max(0, idle.length - mostIdle))) {
      entries.delete(data);
      // An engine that has died has closed it already.
      policy.close().catch(() => {});
    }
  }

  return {
    /** Runs `use` with the policy of these weights. */
    async use<T>(
      base: BaseModel,
      snapshot: Snapshot,
      how: SnapshotUse,
      use: (policy: Policy) => Promise<T>,
    ): Promise<T> {
      const { data } = snapshot;
      const standIn = how === "samples" ? base.standIns.borrow(data) : undefined;
      if (standIn) {
        try {
          return await use(standIn.policy);
        } finally {
          standIn.giveBack();
        }
      }
      const entry = entries.get(data) ?? {
        policy: lazyPolicy(base.keeper, (engine) => open(engine, snapshot)),
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
