/** The synchronous training loop. Read this first. */
import { toBatch } from "../trajectories/to-batch.ts";
import { assignCredit } from "./assign-credit.ts";
import { startClock } from "./clock.ts";
import { sequenceFilters } from "./credit-options.ts";
import { gatherEpisodes } from "./gather-episodes.ts";
import { record } from "./record.ts";
import type { Run } from "./run.ts";
import { isNewBest, saveRun } from "./save-run.ts";
import { updatePolicy } from "./update-policy.ts";
import { validate } from "./validate.ts";

/** Trains until the plan is done or a stop is asked for. Returns whether the plan was done. */
export async function runLoop(run: Run): Promise<boolean> {
  const { config, plan, sampler, learner, progress } = run;
  const { val_before_train, val_only } = config.rllm.trainer;
  if (progress.step === 0 && (val_before_train || val_only)) await validate(run, 0);
  if (val_only) return true;

  const clock = startClock();
  while (progress.step < plan.totalSteps) {
    const step = progress.step + 1;
    const gathered = await gatherEpisodes(run, step);
    clock.lap("rollout");
    const credit = assignCredit(run, gathered.kept);
    const { batch, metrics } = toBatch(credit.groups, credit.advantages, sequenceFilters(config));
    const update = await updatePolicy(run, batch, step);
    clock.lap("update");
    await sampler.load(await learner.publish());
    clock.lap("publish");

    progress.step = step;
    progress.draws += gathered.draws;
    await record(run, { gathered, credit, update, clock, metrics });
    if (plan.validateAfter(step)) await validate(run, step);
    clock.lap("validation");
    const stop = run.stopRequested();
    if (stop || plan.saveAfter(step) || (await isNewBest(run))) await saveRun(run);
    clock.lap("save");
    if (stop) return step === plan.totalSteps;
  }
  return true;
}
