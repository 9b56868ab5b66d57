/** The asynchronous training loop: loop.ts on the same parts, with generation going on while the policy is trained. */
import { toBatch } from "../trajectories/to-batch.ts";
import { assignCredit } from "./assign-credit.ts";
import { asyncOptions } from "./async-options.ts";
import { startClock } from "./clock.ts";
import { sequenceFilters } from "./credit-options.ts";
import { watchOutage } from "./failing-rollouts.ts";
import { type Generation, startGeneration } from "./generation.ts";
import { sharesOfTasks } from "./passes.ts";
import { record } from "./record.ts";
import type { Run } from "./run.ts";
import { isNewBest, saveRun } from "./save-run.ts";
import { takeBatch } from "./take-batch.ts";
import { updatePolicy } from "./update-policy.ts";
import { validate } from "./validate.ts";

/** Trains until the plan is done or a stop is asked for. Returns whether the plan was done. */
export async function runAsyncLoop(run: Run): Promise<boolean> {
  const { config, progress } = run;
  const { val_before_train, val_only } = config.rllm.trainer;
  if (progress.step === 0 && (val_before_train || val_only)) await validate(run, 0);
  if (val_only) return true;

  const generation = await startGeneration(run);
  try {
    return await trainOn(run, generation);
  } finally {
    await generation.close();
  }
}

async function trainOn(run: Run, generation: Generation): Promise<boolean> {
  const { config, plan, sampler, learner, progress } = run;
  const { atOnce, stepsPerSync, partial, batch: tasks } = asyncOptions(config);
  let sinceSync = 0;

  const clock = startClock();
  const outage = watchOutage(run);
  while (progress.step < plan.totalSteps) {
    const step = progress.step + 1;
    const { gathered, metrics: ages } = await takeBatch(run, generation);
    // Its tasks are not repeated: generation has gone on meanwhile.
    await outage.lasts({ mode: "train", step }, gathered.episodes);
    clock.lap("buffer_wait");
    const credit = assignCredit(run, gathered.kept);
    const { batch, metrics } = toBatch(credit.groups, credit.advantages, sequenceFilters(config));
    const update = await generation.during(updatePolicy(run, batch, step, sharesOfTasks(credit.groups, atOnce)));
    clock.lap("update");

    const stop = run.stopRequested();
    const validates = plan.validateAfter(step);
    const saves = stop || plan.saveAfter(step);
    sinceSync++;
    const counted = { ...ages, ...generation.metrics(), ...versions(run, sinceSync) };
    // What is measured and saved at a step are the weights of that step, and what goes on from there samples from them.
    if (sinceSync === stepsPerSync || validates || saves) {
      generation.pause();
      if (!partial || validates) await generation.drain();
      await sampler.load(await learner.publish());
      generation.synced();
      sinceSync = 0;
    }
    clock.lap("weight_sync");

    progress.step = step;
    progress.dispatch = generation.state();
    progress.draws = Math.ceil(progress.dispatch.next / tasks);
    await record(run, { gathered, credit, update, clock, metrics: { ...metrics, ...counted } });
    if (validates) await validate(run, step);
    clock.lap("validation");
    if (saves || (await isNewBest(run))) await saveRun(run);
    clock.lap("save");
    if (stop) return step === plan.totalSteps;
    generation.resume();
  }
  return true;
}

const versions = ({ sampler }: Run, sinceSync: number) => ({
  "async/weight_version": sampler.version,
  "async/steps_since_sync": sinceSync,
});
