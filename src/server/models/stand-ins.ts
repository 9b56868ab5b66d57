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
  const standIns = new Map<Policy, StandIn>();

  return {
    /**
     * Publishes the policy's weights, which the folder `data` holds, so that it stands in for them. Not while others sample
     * from it: they continue with the weights that they began with, and the new ones get a policy of their own.
     */
    async publish(policy: Policy, data: string): Promise<void> {
      if (!keeper.facts.capabilities.frozenSampler.lora) return;
      if ((standIns.get(policy)?.users ?? 0) > 0) return;
      standIns.delete(policy);
      const { life } = keeper;
      await policy.sampler.load(await policy.learner.publish());
      standIns.set(policy, { policy, data, life, users: 0, retired: false });
    },
    /** A policy that samples with the weights of `data`, until it is given back; undefined if there is none. */
    borrow(data: string): { policy: Policy; giveBack(): void } | undefined {
      for (const [policy, { life }] of standIns) if (life !== keeper.life) standIns.delete(policy);
      const standIn = [...standIns.values()].find((each) => each.data === data);
      if (!standIn) return undefined;
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
      const standIn = standIns.get(policy);
      standIns.delete(policy);
      if (!standIn || standIn.users === 0) return policy.learner.close();
      standIn.retired = true;
    },
  };
}
