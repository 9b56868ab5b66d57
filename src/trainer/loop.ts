/** The synchronous training loop. Read this first. */
import { estimateAdvantages } from "../algorithms/advantages.ts";
import { dropSmallGroups, groupTrajectories } from "../trajectories/group-trajectories.ts";
import { toBatch } from "../trajectories/to-batch.ts";
import { estimatorOptions } from "./algorithm-options.ts";
import { startClock } from "./clock.ts";
import { collectEpisodes, tasksOfStep } from "./collect-episodes.ts";
import { record } from "./record.ts";
import type { Run } from "./run.ts";
import { saveRun } from "./save-run.ts";
import { updatePolicy } from "./update-policy.ts";
import { validate } from "./validate.ts";

/** Trains until the plan is done or a stop is asked for. Returns whether the plan was done. */
export async function runLoop(run: Run): Promise<boolean> {
  const { config, plan, policy, progress } = run;
  const { n: rollouts } = config.rllm.rollout;
  const { val_before_train, val_only } = config.rllm.trainer;
  if (progress.step === 0 && (val_before_train || val_only)) await validate(run, 0);
  if (val_only) return true;

  while (progress.step < plan.totalSteps) {
    const step = progress.step + 1;
    const clock = startClock();
    const { epoch, tasks } = tasksOfStep(run, step);

    const episodes = await collectEpisodes(run, {
      purpose: "train",
      tasks,
      rollouts,
      sampling: config.sampling.train,
      step,
    });
    clock.lap("rollout");
    const grouped = groupTrajectories(episodes);
    // A group that failures left with one member has nothing to compare it with.
    const { groups, counts } = dropSmallGroups(grouped.groups, Math.min(2, rollouts));
    const advantages = estimateAdvantages(groups, estimatorOptions(config));
    const { batch, metrics } = toBatch(groups, advantages, { maxLength: config.training.max_length });
    const update = await updatePolicy(run, batch, step);
    clock.lap("update");
    await policy.publish();
    clock.lap("publish");

    progress.step = step;
    await record(run, {
      epoch,
      episodes,
      groups,
      advantages,
      update,
      clock,
      metrics: { ...grouped.counts, ...counts, ...metrics },
    });
    if (plan.validateAfter(step)) await validate(run, step);
    const stop = run.stopRequested();
    if (stop || plan.saveAfter(step)) await saveRun(run);
    if (stop) return step === plan.totalSteps;
  }
  return true;
}
