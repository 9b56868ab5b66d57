/**
 * Live models' policies that sample as the newest snapshot of their weights. A policy samples with what it last
 * published, whatever it is trained to meanwhile, so that snapshot needs no policy of its own: not until the live one
 * publishes others, or is closed.
 */
import type { Policy } from "../../backends/engine.ts";
import type { EngineKeeper } from "./engine-keeper.ts";

interface StandIn {
  policy: Policy;
  data: string;
  /** The engine's when it was published: with an engine that died its policies are gone. */
  life: number;
  users: number;
  retired: boolean;
}

export type StandIns = ReturnType<typeof createStandIns>;

export function createStandIns(keeper: EngineKeeper) {
  const byPolicy = new Map<Policy, StandIn>();
  const byData = new Map<string, StandIn>();

  function forget(standIn: StandIn): void {
    byPolicy.delete(standIn.policy);
    byData.delete(standIn.data);
  }

  return {
    /**
     * Publishes the policy's weights, which the folder `data` holds, so that it stands in for them. Not while others sample
     * from it: they continue with the weights that they began with, and the new ones get a policy of their own.
     */
    async publish(policy: Policy, data: string): Promise<void> {
      if (!keeper.facts.capabilities.frozenSampler.lora) return;
      const before = byPolicy.get(policy);
      if (before && before.users > 0) return;
      if (before) forget(before);
      const { life } = keeper;
      await policy.sampler.load(await policy.learner.publish());
      const standIn = { policy, data, life, users: 0, retired: false };
      byPolicy.set(policy, standIn);
      byData.set(data, standIn);
    },
    /** A policy that samples with the weights of `data`, until it is given back; undefined if there is none. */
    borrow(data: string): { policy: Policy; giveBack(): void } | undefined {
      const standIn = byData.get(data);
      if (!standIn) return undefined;
      if (standIn.life !== keeper.life) {
        forget(standIn);
        return undefined;
      }
      standIn.users++;
      return {
        policy: standIn.policy,
        giveBack() {
          standIn.users--;
          // An engine that has died has closed it already.
          if (standIn.users === 0 && standIn.retired) standIn.policy.learner.close().catch(() => {});
        },
      };
    },
    /** Closes the policy, after those who sample from it. */
    async close(policy: Policy): Promise<void> {
      const standIn = byPolicy.get(policy);
      if (standIn) forget(standIn);
      if (!standIn || standIn.users === 0) return policy.learner.close();
      standIn.retired = true;
    },
  };
}
