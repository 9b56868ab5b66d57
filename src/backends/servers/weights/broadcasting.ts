/** A learner that publishes all weights by broadcasts to an inference server's GPUs. */
import { RunError } from "../../../errors.ts";
import type { Learner, Published } from "../../engine.ts";
import type { Control } from "../control/control.ts";

/**
 * @param processes of the server
 * @throws RunError when they cannot form a group with the learner
 */
export async function broadcasting(
  learner: Learner,
  control: Control,
  processes: number,
): Promise<{ learner: Learner; first(): Promise<Published> }> {
  const group = await learner.openGroup?.(1 + processes);
  if (group === undefined || control.joinGroup === undefined)
    throw new RunError("the trainer or the inference server does not support sending weights by NCCL");
  try {
    await Promise.all([control.joinGroup(group), group.join()]);
  } catch (error) {
    if (!(error instanceof RunError)) throw error;
    const hint = "to send weights through files instead, start vLLM yourself and name it with local.sampler.url";
    throw new RunError(`NCCL did not connect the trainer and the inference server: ${error.message}`, {
      hint,
      cause: error,
    });
  }
  const broadcast = ({ version }: { version: number }): Published => ({ kind: "collective", version, group });
  return {
    /** The weights before training. */
    first: async () => broadcast({ version: 0 }),
    learner: {
      ...learner,
      publish: async () => broadcast(await learner.publish()),
      loadState: async (dir, options) => broadcast(await learner.loadState(dir, options)),
    },
  };
}
