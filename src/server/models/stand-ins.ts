/**
 * Lets a live model's policy stand in for the newest snapshot of its weights. A policy samples with the weights that it
 * last published, also while it is trained. That snapshot needs a policy of its own only after the live one publishes
 * other weights or is closed.
 */
import type { Policy } from "../../backends/engine.ts";
import type { EngineKeeper } from "./engine-keeper.ts";

interface StandIn {
  policy: Policy;
  data: string;
  /** The engine's life at the time of publishing: a dead engine's policies are gone. */
  life: number;
  users: number;
  retired: boolean;
}

export type StandIns = ReturnType<typeof createStandIns>;

export function createStandIns(keeper: EngineKeeper) {
  const standIns = new Map<Policy, StandIn>();

  return {
    /**
     * Publishes the policy's weights, saved in the folder `data`, so that it stands in for them. Does nothing while others
     * sample from the policy: they keep their weights, and the new weights get a policy of their own.
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
    /** Closes the policy when the last request that samples from it has ended. */
    async close(policy: Policy): Promise<void> {
      const standIn = standIns.get(policy);
      standIns.delete(policy);
      if (!standIn || standIn.users === 0) return policy.learner.close();
      standIn.retired = true;
    },
  };
}
