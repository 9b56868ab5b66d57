/** The asynchronous training loop: the stages of loop.ts, while rollouts continue during updates. */
import { toBatch } from "../trajectories/to-batch.ts";
import { type Dispatch, startDispatch } from "./dispatch/dispatch.ts";
import { freshState, pause, savedState, synced, windowMetrics } from "./dispatch/dispatch-window.ts";
import { takeBatch } from "./dispatch/take-batch.ts";
import { completeStep, runClock, warn } from "./loop.ts";
import type { AsyncOptions } from "./recipe/async-options.ts";
import { watchOutage } from "./rollouts/failing-rollouts.ts";
import type { Run } from "./run.ts";
import { askTeachers } from "./update/ask-teachers.ts";
import { assignCredit } from "./update/assign-credit.ts";
import { sharesOfTasks } from "./update/passes.ts";
import { updatePolicy } from "./update/update-policy.ts";

/** Trains until the plan is done or a stop is requested. */
export async function runAsyncLoop(run: Run, options: AsyncOptions): Promise<void> {
  const { dispatch: saved, draws } = run.progress;
  const dispatch = await startDispatch(run, options, saved ?? freshState(draws * options.batch));
  try {
    await trainOn(run, options, dispatch);
  } finally {
    await dispatch.close();
  }
}

async function trainOn(run: Run, options: AsyncOptions, dispatch: Dispatch): Promise<void> {
  const { recipe, models, progress } = run;
  const { plan } = recipe;
  const outage = watchOutage(run.outages);
  const clock = runClock(run);
  let sinceSync = 0;
  while (progress.step < plan.totalSteps) {
    const step = progress.step + 1;
    const { version } = models.sampler;
    const taken = await takeBatch(dispatch, recipe, options, version, (text) => warn(run, step, text));
    const { gathered } = taken;
    // After an outage these tasks are not repeated, because rollouts have continued meanwhile.
    await outage.lasts({ mode: "train", step }, gathered.episodes);
    clock.lap("buffer_wait");

    const credit = assignCredit(gathered.kept, recipe.credit, progress.rewardMoments);
    const { batch, sources, metrics } = toBatch(credit.groups, credit.advantages, recipe.sequences);
    const scores = models.teaching && (await askTeachers(models.teaching, batch, sources, credit.groups));
    const update = await dispatch.during(
      updatePolicy(models, batch, recipe.update, {
        step,
        klWeight: progress.klWeight,
        scores,
        shares: sharesOfTasks(credit.groups, options.atOnce),
        onProgress: (done, total) => run.emit({ type: "update-progress", step, done, total }),
      }),
    );
    clock.lap("update");

    const stop = run.stopRequested();
    const validates = plan.validateAfter(step);
    const saves = stop || plan.saveAfter(step);
    sinceSync++;
    const ages = { "async/weight_version": version, "async/steps_since_sync": sinceSync };
    const counted = { ...taken.metrics, ...windowMetrics(dispatch.window), ...ages };
    // Validation, the checkpoint and later rollouts all use the weights of this step.
    if (sinceSync === options.stepsPerSync || validates || saves) {
      dispatch.update(pause);
      if (!options.partial || validates) await dispatch.drained();
      await models.sampler.load(await models.learner.publish());
      run.emit({ type: "weights", step, version: models.sampler.version });
      dispatch.update(synced);
      sinceSync = 0;
    }
    clock.lap("weight_sync");

    progress.dispatch = savedState(dispatch.window);
    progress.draws = Math.ceil(progress.dispatch.next / options.batch);
    const training = update.tokens.byStep(batch, sources);
    await completeStep(run, { step, gathered, credit, update, training, clock, metrics: { ...metrics, ...counted } });
    if (validates) run.validation = await run.validate(step);
    clock.lap("validation");
    if (saves || (await run.checkpoints?.isNewBest(step, run.validation))) {
      await run.checkpoints?.save(progress, run.validation);
    }
    clock.lap("save");
    if (stop) return;
    dispatch.resume(step + 1);
  }
}
